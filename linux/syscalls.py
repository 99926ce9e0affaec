"""The system call in which a task is: a line of proc_pid_syscall(5), and what the call is about.

The kernel shows it only to a process that may trace the other one: its parent, usually, or root. The numbers are those
of arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (arm64) of the kernel.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

NAMES: dict[str, dict[int, str]] = {
    "x86_64": {
        0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 9: "mmap",
        16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 21: "access", 23: "select", 26: "msync",
        35: "nanosleep", 40: "sendfile", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg",
        47: "recvmsg", 61: "wait4", 65: "semop", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync",
        77: "ftruncate", 82: "rename", 83: "mkdir", 84: "rmdir", 87: "unlink", 89: "readlink", 162: "sync",
        202: "futex", 208: "io_getevents", 217: "getdents64", 220: "semtimedop", 230: "clock_nanosleep",
        232: "epoll_wait", 247: "waitid", 257: "openat", 258: "mkdirat", 262: "newfstatat", 263: "unlinkat",
        264: "renameat", 267: "readlinkat", 269: "faccessat", 270: "pselect6", 271: "ppoll", 275: "splice",
        277: "sync_file_range", 281: "epoll_pwait", 285: "fallocate", 288: "accept4", 295: "preadv", 296: "pwritev",
        299: "recvmmsg", 306: "syncfs", 316: "renameat2", 326: "copy_file_range", 327: "preadv2", 328: "pwritev2",
        332: "statx", 426: "io_uring_enter", 437: "openat2", 439: "faccessat2",
    },
    "aarch64": {
        4: "io_getevents", 22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 34: "mkdirat", 35: "unlinkat",
        38: "renameat", 46: "ftruncate", 47: "fallocate", 48: "faccessat", 56: "openat", 57: "close", 61: "getdents64",
        63: "read", 64: "write", 65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64", 69: "preadv", 70: "pwritev",
        71: "sendfile", 72: "pselect6", 73: "ppoll", 76: "splice", 78: "readlinkat", 79: "newfstatat", 80: "fstat",
        81: "sync", 82: "fsync", 83: "fdatasync", 84: "sync_file_range", 95: "waitid", 98: "futex", 101: "nanosleep",
        115: "clock_nanosleep", 192: "semtimedop", 193: "semop", 202: "accept", 203: "connect", 206: "sendto",
        207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 222: "mmap", 227: "msync", 242: "accept4", 243: "recvmmsg",
        260: "wait4", 267: "syncfs", 276: "renameat2", 285: "copy_file_range", 286: "preadv2", 287: "pwritev2",
        291: "statx", 426: "io_uring_enter", 437: "openat2", 439: "faccessat2",
    },
}  # fmt: skip

PROGRAMS = frozenset(("wait4", "waitid"))
"""Calls that wait for a program."""
_FIFOS = (b"wait_for_partner", b"fifo_open")

READ, WRITE, SYNC, METADATA, CLOSE, SOCKET, SEND, POLL, FAULT, LOCK, FILE_LOCK, SLEEP, QUEUE, OTHER = range(14)
"""LOCK: it waits for another thread or process. FAULT: it is blocked outside of a system call, as in a page fault.
QUEUE: it waits for reads or writes that it has queued."""

FILE, PATH, PATH_AT, ADDRESS, NOTHING = range(5)
"""What the first arguments are: a descriptor; a path; a directory's descriptor and a path below it; an address in a
mapped file."""

_CALLS: dict[tuple[int, int], str] = {
    (READ, FILE): "read pread64 readv preadv preadv2 copy_file_range sendfile splice",
    (WRITE, FILE): "write pwrite64 writev pwritev pwritev2 ftruncate fallocate",
    (SYNC, FILE): "fsync fdatasync sync_file_range syncfs",
    (SYNC, ADDRESS): "msync",
    (METADATA, FILE): "fstat getdents64",
    (METADATA, PATH): "open stat lstat access readlink rename mkdir rmdir unlink",
    (METADATA, PATH_AT): (
        "openat openat2 newfstatat statx faccessat faccessat2 readlinkat renameat renameat2 mkdirat unlinkat"
    ),
    (CLOSE, FILE): "close",
    (SOCKET, FILE): "recvfrom recvmsg recvmmsg",
    (SEND, FILE): "connect accept accept4 sendto sendmsg",
    (POLL, NOTHING): "poll ppoll select pselect6 epoll_wait epoll_pwait",
    (LOCK, NOTHING): "futex semop semtimedop",
    (FILE_LOCK, FILE): "flock fcntl",
    (SLEEP, NOTHING): "nanosleep clock_nanosleep",
    (QUEUE, NOTHING): "io_getevents io_uring_enter",
    (OTHER, FILE): "ioctl",
}
_ABOUT = {name: what for what, names in _CALLS.items() for name in names.split()}
_SIZED = frozenset(("read", "pread64", "write", "pwrite64"))
_MOST_BYTES = 0x7FFFF000
"""The kernel moves no more in one call (read(2))."""
_MOST_POLLED = 8
_MACHINE = os.uname().machine


class Call(NamedTuple):
    kind: int
    about: int
    """What the first arguments are."""
    first: int
    second: int
    """The first two. The descriptor that `sendfile` reads comes first, too."""
    size: int
    """The bytes that it asked for; 0: not known."""
    name: str
    """Empty outside of a system call."""

    @property
    def file(self) -> int:
        """The descriptor that it uses; -1 if it uses none, or one that is a number for the kernel (AT_FDCWD)."""
        return max(-1, descriptor(self.first)) if self.about == FILE else -1


def parse(line: bytes, machine: str = _MACHINE) -> Call | None:
    """The call in which a task is blocked; None if it runs, or waits for a CPU."""
    words = line.split(maxsplit=4)
    if not words or words[0] == b"running":
        return None
    if words[0] == b"-1":
        return Call(FAULT, NOTHING, 0, 0, 0, "")
    try:
        number = int(words[0])
        first, second, third = (int(word, 16) for word in words[1:4])
    except ValueError:
        return None
    name = NAMES.get(machine, {}).get(number, f"system call {number}")
    if name == "sendfile":  # (to, from, ...), unlike the others
        first, second = second, first
    kind, about = _ABOUT.get(name, (OTHER, NOTHING))
    return Call(kind, about, first, second, min(third, _MOST_BYTES) if name in _SIZED else 0, name)


def awaits_pipe(wchan: bytes) -> bool:
    """Whether a task waits for the other end of a pipe, by the function of the kernel in which it is blocked
    (proc_pid_wchan(5)). The descriptor of a named pipe looks like that of a file, and to ask its file system may hang.
    """
    return b"pipe" in wchan or wchan in _FIFOS


def descriptor(argument: int) -> int:
    """A descriptor that was passed as an argument: an int of C."""
    number = argument & 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number


def polled(call: Call, process: str) -> list[int]:
    """The descriptors for which a `poll` waits, in their order; empty if there are many, or if this may not be read.

    ``process``: its folder in /proc. The numbers are in its memory: the first field of each `struct pollfd` (poll(2)).
    """
    if call.name not in ("poll", "ppoll") or not 0 < call.second <= _MOST_POLLED:
        return []
    try:
        file = os.open(f"{process}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.pread(file, 8 * call.second, call.first)
        finally:
            os.close(file)
    except (OSError, OverflowError):
        return []
    numbers = [int.from_bytes(found[at : at + 4], sys.byteorder, signed=True) for at in range(0, len(found), 8)]
    return numbers if len(numbers) == call.second else []
