"""What a process is doing, from the system call in which its main thread is (proc_pid_syscall(5)).

The kernel shows it only to a process that may trace the other one: its parent, usually, or root.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable

from .clock import signed_ticks
from .syscalls import NAMES

DOING: tuple[str, ...] = ("running", "lock", "sleep", "read", "network", "other")
"""What a data worker does: `running` includes waiting for a CPU; `lock`: a lock that processes share; `read`: it reads,
opens or looks up a file, also by a page fault; `network`: a socket, or it polls."""

_FILES, _LOCKS, _SLEEPS, _SOCKETS = "read", "lock", "sleep", "network"
_FUTEX, _FCNTL, _READ = "futex", "fcntl", "read from"
_CALLS: dict[str, str] = {
    _READ: "read pread64 readv preadv preadv2",
    _FILES: "open openat stat fstat lstat newfstatat statx getdents64 io_getevents io_uring_enter",
    _FUTEX: "futex",
    _FCNTL: "fcntl",
    _LOCKS: "flock semop semtimedop",
    _SLEEPS: "nanosleep clock_nanosleep",
    _SOCKETS: "recvfrom recvmsg recvmmsg connect sendto sendmsg poll ppoll select pselect6 epoll_wait epoll_pwait",
}
"""Kind -> the system calls."""
_KIND_OF = {name: kind for kind, names in _CALLS.items() for name in names.split()}
_KIND = {number: _KIND_OF[name] for number, name in NAMES.get(platform.machine(), {}).items() if name in _KIND_OF}
_PRIVATE = 128  # FUTEX_PRIVATE_FLAG: the threads of one process wait for one another
_WAITS_FOR_LOCK = (7, 38)  # F_SETLKW, F_OFD_SETLKW


def start_ticks(pid: int, proc: str = "/proc") -> int:
    """When a process started, field 22 of its `stat`; 0 if it has ended."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            return signed_ticks(int(file.read(4096).rpartition(b")")[2].split()[19]))
    except (OSError, ValueError, IndexError):
        return 0


def state(pid: int, proc: str = "/proc") -> str:
    """The state of a process as one letter, such as `D`; empty if it has ended."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            return file.read(4096).rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def doing(pid: int, proc: str = "/proc") -> str | None:
    """One of DOING; None if the process has ended or may not be looked at."""
    try:
        fd = os.open(f"{proc}/{pid}/syscall", os.O_RDONLY | os.O_CLOEXEC)
        try:
            line = os.read(fd, 256)
        finally:
            os.close(fd)
    except OSError:
        return None
    return parse(line, lambda number: _target(f"{proc}/{pid}/fd/{number}"))


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def parse(line: bytes, target: Callable[[int], str], kinds: dict[int, str] = _KIND) -> str | None:
    """``line``: of /proc/<pid>/syscall. ``target``: what a descriptor of the process refers to, as its link says."""
    words = line.split()
    if not words:
        return None
    if words[0] == b"running":
        return "running"
    if words[0] == b"-1":
        return "read"  # blocked outside of a system call: a page that is being read
    try:
        kind = kinds.get(int(words[0]), "other")
        first, second = int(words[1], 16), int(words[2], 16)
    except (ValueError, IndexError):
        return None
    if kind == _FUTEX:
        return "other" if second & _PRIVATE else "lock"
    if kind == _FCNTL:
        return "lock" if second in _WAITS_FOR_LOCK else "read"
    if kind == _READ:
        read = target(first)
        return "network" if read.startswith("socket:") else "other" if read.startswith("pipe:") else "read"
    return kind
