"""/proc/<pid>/io and /proc/<pid>/schedstat.

Formats: proc_pid_io(5); https://docs.kernel.org/scheduler/sched-stats.html and `proc_pid_schedstat` in the kernel's
fs/proc/base.c.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..files import Unreadable

_IO = re.compile(
    rb"rchar: (\d{1,20})\nwchar: (\d{1,20})\nsyscr: \d+\nsyscw: \d+\nread_bytes: (\d{1,20})\nwrite_bytes: (\d{1,20})\n"
)


class PidIo(NamedTuple):
    """Bytes read and written by all threads of a process, and by its children that ended and were waited for."""

    syscall_read: int
    syscall_write: int
    storage_read: int
    storage_write: int


def parse(data: bytes) -> PidIo:
    """Parses `io`. Raises Unreadable."""
    match = _IO.match(data)
    if match is None:
        raise Unreadable("garbage" if data.strip() else "empty")
    return PidIo(*map(int, match.groups()))


class Schedstat(NamedTuple):
    """Times of one thread, in ns."""

    cpu_ns: int
    runqueue_ns: int  # ready to run, without a CPU


def schedstat(data: bytes) -> Schedstat:
    """Parses `schedstat`. Raises Unreadable."""
    fields = data.split()
    if len(fields) != 3 or not (fields[0].isdigit() and fields[1].isdigit()) or len(data) > 64:
        raise Unreadable("garbage" if fields else "empty")
    return Schedstat(int(fields[0]), int(fields[1]))
