"""Opens and reads files of /proc while the calling thread keeps Python's lock.

`os.open` and `os.pread` release the lock. Where another thread of the process computes in Python, the training thread
then waits a whole switch interval (5 ms) to get it back, for a read that takes 1 µs. And several such reads are
of different moments. The files of /proc do not block, so there is no need to release the lock.
"""

from __future__ import annotations

import os
import sys

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_DIRECTORY_BYTES = 1 << 15

try:
    import ctypes

    _libc = ctypes.PyDLL(None, use_errno=True)  # a PyDLL does not release the lock
    _open, _pread = _libc.open, _libc.pread
    _open.argtypes, _open.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_int
    _pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
    _pread.restype = ctypes.c_ssize_t
    _SIZES: dict[int, type[ctypes.Array[ctypes.c_char]]] = {}

    def open_file(path: str) -> int:
        """A descriptor for reading; -1 if the file cannot be opened."""
        return _open(path.encode(), os.O_RDONLY | os.O_CLOEXEC)

    def read(fd: int, size: int) -> bytes:
        """Up to ``size`` bytes from the start of the file. Raises OSError."""
        kind = _SIZES.get(size)
        if kind is None:
            kind = _SIZES[size] = ctypes.c_char * size
        buffer = kind()
        count = _pread(fd, buffer, size, 0)
        if count < 0:
            raise OSError(ctypes.get_errno(), "pread")
        return buffer.raw[:count]

    _readlink = _libc.readlink
    _readlink.argtypes, _readlink.restype = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_ssize_t

    def link(path: str) -> str:
        """What a link refers to; empty if that cannot be read."""
        buffer = ctypes.create_string_buffer(4096)
        count = _readlink(path.encode(), buffer, 4096)
        return buffer.raw[:count].decode(errors="replace") if count > 0 else ""

    _syscall = _libc.syscall
    _OPENAT2, _RESOLVE_CACHED = 437, 0x20  # include/uapi/linux/openat2.h; the number is the same on all machines
    _HOW = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, _RESOLVE_CACHED)

    def cached_directory(path: bytes) -> int:
        """A descriptor of a directory, as a place only (O_PATH); -1 if the kernel would have to ask a disk or a server
        where it is, or does not know how to open it in this way (before Linux 5.12)."""
        at = ctypes.c_long(-100)  # AT_FDCWD
        return _syscall(ctypes.c_long(_OPENAT2), at, ctypes.c_char_p(path), ctypes.byref(_HOW), ctypes.c_size_t(24))

    _getdents = _libc.getdents64
    _getdents.argtypes, _getdents.restype = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_ssize_t

    def numbers_in(path: str) -> list[int]:
        """The entries of a directory whose names are numbers, such as the threads of a process. Raises OSError."""
        fd = _open(path.encode(), os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "open", path)
        found, buffer = [], ctypes.create_string_buffer(_DIRECTORY_BYTES)
        try:
            while (count := _getdents(fd, buffer, _DIRECTORY_BYTES)) > 0:
                entries, at = buffer.raw[:count], 0
                while at < count:
                    # struct linux_dirent64, getdents64(2): the length is at 16, and the name at 19
                    length = int.from_bytes(entries[at + 16 : at + 18], sys.byteorder)
                    name = entries[at + 19 : entries.index(b"\0", at + 19)]
                    if name.isdigit():
                        found.append(int(name))
                    at += length
        finally:
            os.close(fd)
        return found

except (ImportError, AttributeError, OSError):  # this Python has no ctypes

    def open_file(path: str) -> int:
        """A descriptor for reading; -1 if the file cannot be opened."""
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return -1

    def read(fd: int, size: int) -> bytes:
        """Up to ``size`` bytes from the start of the file. Raises OSError."""
        return os.pread(fd, size, 0)

    def link(path: str) -> str:
        """What a link refers to; empty if that cannot be read."""
        try:
            return os.readlink(path)
        except OSError:
            return ""

    def cached_directory(path: bytes) -> int:
        """Not possible without ctypes."""
        return -1

    def numbers_in(path: str) -> list[int]:
        """The entries of a directory whose names are numbers, such as the threads of a process. Raises OSError."""
        return [int(name) for name in os.listdir(path) if name.isdigit()]


def read_table(path: str, size: int) -> bytes:
    """About ``size`` bytes of a table of the kernel, which gives a page at a time; empty if it cannot be read."""
    fd = open_file(path)
    if fd < 0:
        return b""
    found = b""
    try:
        while len(found) < size and (more := os.pread(fd, size, len(found))):
            found += more
    except OSError:
        return b""
    finally:
        os.close(fd)
    return found


def read_file(path: str, size: int) -> str:
    """The first ``size`` bytes of a file as text; empty if it cannot be read."""
    return read_bytes(path, size).decode(errors="replace")


def reaped_ns(pid: int) -> int:
    """The CPU time of the children for which a process has waited (cutime and cstime of proc_pid_stat(5)); 0 if it is
    not known."""
    fields = read_bytes(f"/proc/{pid}/stat", 1024).rpartition(b")")[2].split(maxsplit=15)
    return sum(map(int, fields[13:15])) * TICK_NS if len(fields) > 15 else 0


def read_bytes(path: str, size: int) -> bytes:
    """The first ``size`` bytes of a file; empty if it cannot be read."""
    fd = open_file(path)
    if fd < 0:
        return b""
    try:
        return read(fd, size)
    except OSError:  # the thread or process has ended
        return b""
    finally:
        os.close(fd)


def stat_field(folder: str, field: int) -> str:
    """A field of proc_pid_stat(5), counted from the state; empty if the thread or process has ended."""
    fields = read_bytes(f"{folder}/stat", 512).rpartition(b")")[2].split(maxsplit=field + 1)
    return fields[field].decode() if len(fields) > field else ""


def major_faults(folder: str) -> int:
    """The page faults of a thread or process that had to wait for a read."""
    return int(stat_field(folder, 9) or 0)
