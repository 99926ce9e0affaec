"""What a task is in, from the line of proc_pid_syscall(5): the call, and which file it is about."""

from __future__ import annotations

import platform
from typing import NamedTuple

from ...ledger.syscalls import NAMES

READ, WRITE, SYNC, METADATA, CLOSE, SOCKET, POLL, FAULT, LOCK, OTHER = range(10)
"""LOCK: it waits for another thread or process. FAULT: it is blocked outside of a system call, as in a page fault."""

FILE, PATH, PATH_AT, NOTHING = range(4)
"""What the first arguments are: a descriptor; a path; a directory's descriptor and a path below it."""

_CALLS: dict[tuple[int, int], str] = {
    (READ, FILE): "read pread64 readv preadv preadv2 copy_file_range",
    (WRITE, FILE): "write pwrite64 writev pwritev pwritev2 ftruncate fallocate",
    (SYNC, FILE): "fsync fdatasync sync_file_range syncfs",
    (METADATA, FILE): "fstat getdents64",
    (METADATA, PATH): "open stat lstat access readlink rename mkdir rmdir unlink",
    (METADATA, PATH_AT): (
        "openat openat2 newfstatat statx faccessat faccessat2 readlinkat renameat renameat2 mkdirat unlinkat"
    ),
    (CLOSE, FILE): "close",
    (SOCKET, FILE): "recvfrom recvmsg recvmmsg",
    (POLL, NOTHING): "poll ppoll select pselect6 epoll_wait epoll_pwait",
    (LOCK, NOTHING): "futex semop semtimedop",
}
_OF_NAME = {name: what for what, names in _CALLS.items() for name in names.split()}
_TABLE = {number: _OF_NAME[name] for number, name in NAMES.get(platform.machine(), {}).items() if name in _OF_NAME}
_SIZED = frozenset(
    number
    for number, name in NAMES.get(platform.machine(), {}).items()
    if name in ("read", "pread64", "write", "pwrite64")
)
_MOST_BYTES = 0x7FFFF000
"""The kernel moves no more in one call (read(2))."""


class Call(NamedTuple):
    kind: int
    about: int
    """What the first arguments are."""
    first: int
    second: int
    size: int
    """The bytes that it asked for; 0: not known."""


def parse(line: bytes) -> Call | None:
    """The call in which a task is blocked; None if it runs, or waits for a CPU."""
    words = line.split()
    if not words or words[0] == b"running":
        return None
    if words[0] == b"-1":
        return Call(FAULT, NOTHING, 0, 0, 0)
    try:
        number = int(words[0])
        first, second, third = (int(word, 16) for word in words[1:4])
    except ValueError:
        return None
    kind, about = _TABLE.get(number, (OTHER, NOTHING))
    return Call(kind, about, first, second, min(third, _MOST_BYTES) if number in _SIZED else 0)


def descriptor(argument: int) -> int:
    """A descriptor that was passed as an argument: an int of C."""
    number = argument & 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number
