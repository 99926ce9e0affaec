"""Prepares the directory of ledgers like /tmp: every user can write there, and no user can remove another user's file.

The agent's user becomes the owner, so that the agent can remove the ledgers of ended ranks. The kubelet creates the
directory with owner root and mode 755. Needs uid 0 and CAP_CHOWN: the mode is changed while root owns the directory.
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
    # The path may be wrong, or somebody may have replaced the directory by a link: do not make another one writable.
    foreign = [name for name in os.listdir(folder) if not name.endswith((".ledger", ".new", ".end"))]
    if foreign:
        print(f"{directory} contains files that are not ledgers, such as {foreign[0]!r}: not changed", file=sys.stderr)
        sys.exit(0 if shared else "ledgers.hostPath must be a directory for ledgers only")
if not shared:
    os.fchown(folder, 0, 0)
    os.fchmod(folder, SHARED)
if status.st_uid != uid:
    os.fchown(folder, uid, uid)
