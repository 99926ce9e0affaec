"""Caches between a process and its storage: which caches exist, how to empty them, and whether that worked."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROT_READ, _MAP_PRIVATE = 1, 2
_MAP_FAILED = ctypes.c_void_p(-1).value
_DROP = "/proc/sys/vm/drop_caches"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]

IN_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
_REMOTE = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "orangefs", "smb3", "virtiofs", "wekafs"}
)


class FileSystem(NamedTuple):
    type: str
    """The kernel's name for it."""
    kind: str
    """`memory`, `remote` (a server or a daemon has its own caches) or `local`."""


def file_system(path: str, mountinfo: str = "/proc/self/mountinfo") -> FileSystem:
    """The file system of a path (proc_pid_mountinfo(5)). Its type is empty if the kernel does not list it."""
    real = os.path.realpath(path)
    longest, found = -1, ""
    try:
        with open(mountinfo, encoding="utf-8", errors="replace") as file:
            for line in file:
                before, _, after = line.partition(" - ")
                point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split()[4])
                inside = real == point or real.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= longest:  # several on one mount point: the last one is on top
                    longest, found = len(point), after.split()[0]
    except (OSError, IndexError):
        pass
    remote = found in _REMOTE or (found.startswith("fuse") and found != "fuseblk")
    return FileSystem(found, "memory" if found in IN_MEMORY else "remote" if remote else "local")


def drop(paths: Iterable[str]) -> float | None:
    """Asks the kernel to drop these files from the page cache, and checks the result.

    The files must have been synced, because dirty pages are not dropped. Returns the share of their bytes that is still
    cached, or None if the file system does not report it. Raises OSError.
    """
    whole = kept = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            size = os.fstat(descriptor).st_size
            resident = _resident(descriptor, size)
        finally:
            os.close(descriptor)
        if resident is None:
            return None
        whole += size
        kept += min(resident, size)
    return kept / whole if whole else None


def _resident(descriptor: int, size: int) -> int | None:
    """The bytes of a file in the page cache (mincore(2)). None if the file cannot be mapped.

    The kernel answers only users who may write the file. To others it reports all pages as cached.
    """
    if not size:
        return 0
    # A private mapping: FUSE without a page cache (direct_io) refuses shared ones.
    address = _libc.mmap(None, size, _PROT_READ, _MAP_PRIVATE, descriptor, 0)
    if address == _MAP_FAILED:
        return None
    try:
        pages = ctypes.create_string_buffer(-(-size // _PAGE))
        if _libc.mincore(address, size, pages):
            return None
        return sum(page & 1 for page in pages.raw[: -(-size // _PAGE)]) * _PAGE
    finally:
        _libc.munmap(address, size)


def drop_all() -> None:
    """Empties the kernel's caches of all files, directory entries and inodes (proc_sys_vm(5)). Raises OSError."""
    os.sync()
    with open(_DROP, "w") as file:
        file.write("3\n")
