"""Makes the directory of ledgers as /tmp is: whoever trains may write there, and nobody removes another's file.

It becomes the agent's, which alone may then remove what ranks left behind. The kubelet makes the directory as root's,
with mode 755. Needs uid 0 and CAP_CHOWN: the mode is changed while the directory is root's.
"""

import os
import stat
import sys

SHARED = 0o1777
AGENT = 65532

directory, uid = sys.argv[1], int(sys.argv[2])
folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
status = os.fstat(folder)
shared = stat.S_IMODE(status.st_mode) == SHARED
if not (shared and status.st_uid == AGENT):
    # A wrong path, or a link that somebody put in its place on the node, must not open to everybody what is not ours.
    foreign = [name for name in os.listdir(folder) if not name.endswith((".ledger", ".new"))]
    if foreign:
        print(f"{directory} is left as it is: it holds what is no ledger, such as {foreign[0]!r}", file=sys.stderr)
        sys.exit(0 if shared else "ledgers.hostPath has to be a directory of its own")
if not shared:
    os.fchown(folder, 0, 0)
    os.fchmod(folder, SHARED)
if status.st_uid != uid:
    os.fchown(folder, uid, uid)
