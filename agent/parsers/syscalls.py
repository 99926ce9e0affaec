"""/proc/<pid>/syscall: the system call in which a thread is.

Format: proc_pid_syscall(5). The numbers are those of the machine's architecture.
"""

from __future__ import annotations

import os
import re

_LINE = re.compile(rb"^(\d{1,4}) 0x([0-9a-f]{1,16}) ")
# The calls in which training processes block. From the kernel's arch/x86/entry/syscalls/syscall_64.tbl and
# include/uapi/asm-generic/unistd.h (arm64).
_NAMES: dict[str, dict[int, str]] = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 9: "mmap", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev",
        23: "select", 35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg",
        47: "recvmsg", 61: "wait4", 73: "flock", 74: "fsync", 75: "fdatasync", 202: "futex", 230: "clock_nanosleep",
        232: "epoll_wait", 247: "waitid", 257: "openat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait",
        288: "accept4", 16: "ioctl", 72: "fcntl", 2: "open", 3: "close",
    },
    "aarch64": {
        22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 56: "openat", 57: "close", 63: "read", 64: "write",
        65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64", 72: "pselect6", 73: "ppoll", 82: "fsync",
        83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 202: "accept",
        203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 222: "mmap", 242: "accept4",
        260: "wait4",
    },
}  # fmt: skip
_OF_FILES = frozenset(
    {"read", "write", "pread64", "pwrite64", "readv", "writev", "fsync", "fdatasync", "sendto", "recvfrom", "sendmsg"}
    | {"recvmsg", "ioctl", "flock", "connect", "accept", "accept4"}
)


def parse(data: bytes, machine: str = os.uname().machine) -> tuple[str, int]:
    """The name of the call, and the number of the file that it uses; -1 if it uses none. An empty name: none."""
    found = _LINE.match(data)
    if found is None:
        return "", -1  # it runs
    name = _NAMES.get(machine, {}).get(int(found[1]), f"system call {int(found[1])}")
    argument = int(found[2], 16)
    return name, argument if name in _OF_FILES and argument < 1 << 31 else -1
