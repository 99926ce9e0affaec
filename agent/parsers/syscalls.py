"""/proc/<pid>/syscall: the system call in which a thread is.

Format: proc_pid_syscall(5). The numbers are those of the machine's architecture.
"""

from __future__ import annotations

import os
import re

from ...ledger.syscalls import NAMES

_LINE = re.compile(rb"^(\d{1,4}) 0x([0-9a-f]{1,16}) ")
_OF_FILES = frozenset(
    {"read", "write", "pread64", "pwrite64", "readv", "writev", "fsync", "fdatasync", "sendto", "recvfrom", "sendmsg"}
    | {"recvmsg", "ioctl", "flock", "connect", "accept", "accept4"}
)


def parse(data: bytes, machine: str = os.uname().machine) -> tuple[str, int]:
    """The name of the call, and the number of the file that it uses; -1 if it uses none. An empty name: none."""
    found = _LINE.match(data)
    if found is None:
        return "", -1  # it runs
    name = NAMES.get(machine, {}).get(int(found[1]), f"system call {int(found[1])}")
    argument = int(found[2], 16)
    return name, argument if name in _OF_FILES and argument < 1 << 31 else -1
