"""/proc/<pid>/mountinfo, and the open and mapped files in /proc/<pid>/fdinfo and /proc/<pid>/maps.

Formats: proc_pid_mountinfo(5), proc_pid_fdinfo(5), proc_pid_maps(5).
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from .unreadable import Unreadable

_LINE = re.compile(rb"(\d{1,10}) \d+ (\d{1,10}:\d{1,10}) \S+ (\S+) \S+(?: \S+)* - (\S+) (\S*)(?: \S*)?")
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_FLAGS = re.compile(rb"^flags:\s*0([0-7]{1,15})$", re.MULTILINE)
_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d{1,10})$", re.MULTILINE)
_MAPPED = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ ([r-][w-])([x-])([sp]) [0-9a-f]+ \S+ [1-9]\d* +(/.*)$", re.MULTILINE)

_AREA = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) [r-][w-]([x-])[sp] [0-9a-f]+ \S+ [1-9]\d* +(/.*)$", re.MULTILINE)
_NO_FILES = (b"/dev/", b"/memfd:", b"/SYSV", b"/anon_hugepage")

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
    """Whether a file system of this type is on the network. Most FUSE types count, as most access object stores."""
    return fstype in _NETWORK or fstype == "fuse" or (fstype.startswith("fuse.") and fstype not in _LOCAL_FUSE)


class Mount(NamedTuple):
    """One mount, as seen by the process that mountinfo belongs to."""

    point: str
    fstype: str
    source: str
    device: str  # major:minor


def mounts(data: bytes) -> tuple[dict[int, Mount], int]:
    """Id -> mount, and the number of lines that cannot be parsed. Raises Unreadable("empty")."""
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
    """Decodes a field, in which blanks, tabs, newlines and backslashes are written in octal."""
    text = _ESCAPE.sub(lambda at: bytes((int(at[1], 8) & 0xFF,)), raw).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "�" for c in text)


class OpenFile(NamedTuple):
    """One open file of a process."""

    mount: int  # id of the mount that it was opened through
    reads: bool
    writes: bool


def open_file(fdinfo: bytes) -> OpenFile | None:
    """Parses fdinfo. Returns None for a directory or a file opened with O_PATH. Raises Unreadable."""
    flags, mount = _FLAGS.search(fdinfo), _MOUNT_ID.search(fdinfo)
    if flags is None or mount is None:
        raise Unreadable("garbage" if fdinfo.strip() else "empty")
    bits = int(flags[1], 8)
    if bits & (os.O_DIRECTORY | os.O_PATH):
        return None
    access = bits & os.O_ACCMODE
    return OpenFile(int(mount[1]), reads=access != os.O_WRONLY, writes=access != os.O_RDONLY)


def mapped_files(maps: bytes) -> dict[str, bool]:
    """Path of a mapped file -> whether the process writes through the mapping.

    Programs and libraries are left out. They are the files of which a part is mapped as executable.
    """
    found: dict[bytes, bool] = {}
    executed: set[bytes] = set()
    for access, execute, shared, path in _MAPPED.findall(maps):
        if execute == b"x":
            executed.add(path)
        else:
            found[path] = found.get(path, False) or (shared == b"s" and access[1:] == b"w")
    return {_text(path): writes for path, writes in found.items() if path not in executed}


def mapped_bytes(maps: bytes) -> dict[str, int]:
    """Path of a mapped file -> how much of it is mapped. Programs, libraries and deleted files are left out."""
    found: dict[bytes, int] = {}
    executed: set[bytes] = set()
    for start, end, execute, path in _AREA.findall(maps):
        if execute == b"x":
            executed.add(path)
        elif not path.startswith(_NO_FILES) and not path.endswith(b" (deleted)"):
            found[path] = found.get(path, 0) + int(end, 16) - int(start, 16)
    return {_text(path): size for path, size in found.items() if path not in executed}


def mapped_at(maps: bytes, address: int) -> str:
    """The path of the file that is mapped at an address; empty if none is, or if it was deleted."""
    for area in _AREA.finditer(maps):
        if int(area[1], 16) <= address < int(area[2], 16):
            path = area[4]
            return "" if path.startswith(_NO_FILES) or path.endswith(b" (deleted)") else _text(path)
    return ""


def mount_of(path: str, known: dict[int, Mount]) -> Mount | None:
    """The mount of a path, or None: the last mount with the longest mount point above the path."""
    best: Mount | None = None
    for mount in known.values():
        point = mount.point.rstrip("/")
        if (path == point or path.startswith(point + "/")) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best
