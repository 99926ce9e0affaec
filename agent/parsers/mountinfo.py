"""/proc/<pid>/mountinfo, and what /proc/<pid>/fdinfo and maps say of open and mapped files.

Formats: proc_pid_mountinfo(5), proc_pid_fdinfo(5), proc_pid_maps(5).
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from ..files import Unreadable

_LINE = re.compile(rb"(\d{1,10}) \d+ (\d{1,10}:\d{1,10}) \S+ (\S+) \S+(?: \S+)* - (\S+) (\S*)(?: \S*)?")
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_FLAGS = re.compile(rb"^flags:\s*0([0-7]{1,15})$", re.MULTILINE)
_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d{1,10})$", re.MULTILINE)
_MAPPED = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ ([r-][w-])([x-])([sp]) [0-9a-f]+ \S+ [1-9]\d* +(/.*)$", re.MULTILINE)


# fmt: off
_NETWORK = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2",
        "orangefs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs",
    }
)
# fmt: on
_LOCAL_FUSE = frozenset({"fuse.lxcfs", "fuse.portal", "fuse.gvfsd-fuse", "fuse.fuse-overlayfs", "fuse.ntfs-3g"})


def is_network(fstype: str) -> bool:
    """Whether its data come from elsewhere, as far as its type tells: FUSE mostly stands before an object store."""
    return fstype in _NETWORK or fstype == "fuse" or (fstype.startswith("fuse.") and fstype not in _LOCAL_FUSE)


class Mount(NamedTuple):
    """One mount, as the process sees it whose mountinfo it is."""

    point: str
    fstype: str
    source: str
    device: str  # major:minor


def mounts(data: bytes) -> tuple[dict[int, Mount], int]:
    """The mounts by their ids, and how many lines made no sense. Raises Unreadable("empty")."""
    if not data.strip():
        raise Unreadable("empty")
    found: dict[int, Mount] = {}
    bad = 0
    for line in data.rstrip(b"\n").split(b"\n"):
        match = _LINE.fullmatch(line)
        if match is None:
            bad += 1
            continue
        number, device, point, fstype, source = match.groups()
        found[int(number)] = Mount(_text(point), _text(fstype), _text(source), device.decode())
    return found, bad


def _text(raw: bytes) -> str:
    """Blanks, tabs, newlines and backslashes are written in octal."""
    text = _ESCAPE.sub(lambda at: bytes((int(at[1], 8) & 0xFF,)), raw).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "�" for c in text)


class OpenFile(NamedTuple):
    """One open file of a process."""

    mount: int  # id of the mount that it was opened through
    reads: bool
    writes: bool


def open_file(fdinfo: bytes) -> OpenFile | None:
    """None for a directory, or one opened as a mere path. Raises Unreadable."""
    flags, mount = _FLAGS.search(fdinfo), _MOUNT_ID.search(fdinfo)
    if flags is None or mount is None:
        raise Unreadable("garbage" if fdinfo.strip() else "empty")
    bits = int(flags[1], 8)
    if bits & (os.O_DIRECTORY | os.O_PATH):
        return None
    access = bits & os.O_ACCMODE
    return OpenFile(int(mount[1]), reads=access != os.O_WRONLY, writes=access != os.O_RDONLY)


def mapped_files(maps: bytes) -> dict[str, bool]:
    """The files that are mapped, and whether they are written through it. Programs and libraries are left out: a part
    of each is mapped to be executed."""
    found: dict[bytes, bool] = {}
    executed: set[bytes] = set()
    for access, execute, shared, path in _MAPPED.findall(maps):
        if execute == b"x":
            executed.add(path)
        else:
            found[path] = found.get(path, False) or (shared == b"s" and access[1:] == b"w")
    return {_text(path): writes for path, writes in found.items() if path not in executed}


def mount_of(path: str, known: dict[int, Mount]) -> Mount | None:
    """The mount that a path is on: the last one on the longest mount point above it."""
    best: Mount | None = None
    for mount in known.values():
        point = mount.point.rstrip("/")
        if (path == point or path.startswith(point + "/")) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best
