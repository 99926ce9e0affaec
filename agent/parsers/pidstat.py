"""The files `stat`, `status` and `children` of one process in /proc/<pid>.

Format: proc_pid_stat(5), proc_pid_status(5), and `do_task_stat` in the kernel's fs/proc/array.c.
"""

from __future__ import annotations

import re
from operator import itemgetter
from typing import NamedTuple

from ...ledger.clock import signed_ticks
from ..files import Unreadable

_NSPID = re.compile(rb"^NSpid:((?:\s+\d{1,10})+)\s*$", re.MULTILINE)
_UID = re.compile(rb"^Uid:\s+\d{1,10}\s+(\d{1,10})\s", re.MULTILINE)
_MOST = 1 << 64


class PidStat(NamedTuple):
    """One process. Times are in ticks of ``sysconf(_SC_CLK_TCK)``.

    The values of children are those of children that ended and were waited for, and of their children in turn.
    """

    state: str  # R, S, D, Z, T, t, I, X, ...; of the main thread
    parent: int
    major_faults: int  # of all threads, including ended ones, as are the times
    children_major_faults: int
    user_ticks: int
    system_ticks: int
    children_user_ticks: int
    children_system_ticks: int
    threads: int
    start_ticks: int  # since boot; negative for a process that started before the boot time of the time namespace
    resident_pages: int
    block_io_ticks: int  # of the main thread; 0 unless kernel.task_delayacct was on when it started


def parse(data: bytes) -> PidStat:
    """Parses `stat`. Raises Unreadable."""
    if not data.strip():
        raise Unreadable("empty")
    # The name of the program is in parentheses, and may contain parentheses and blanks.
    fields = data[data.rfind(b")") + 2 :].split(None, 40)
    try:
        state = fields[0].decode("ascii")
        numbers = tuple(map(int, _NUMBERS(fields)))
    except (IndexError, ValueError):
        raise Unreadable("garbage") from None
    if len(state) != 1 or not state.isalpha() or min(numbers) < 0 or max(numbers) >= _MOST:
        raise Unreadable("garbage")
    stat = PidStat(state, *numbers)
    started = signed_ticks(stat.start_ticks)
    return stat if started == stat.start_ticks else stat._replace(start_ticks=started)


_NUMBERS = itemgetter(1, 9, 10, 11, 12, 13, 14, 17, 19, 21, 39)
"""Positions among the fields after the name. The first of these fields is number 3 in proc_pid_stat(5)."""


class ProcessIds(NamedTuple):
    """The pids and the user of a process."""

    pids: tuple[int, ...]  # one per pid namespace, from that of this procfs down to the process's own
    uid: int  # effective user id


def identity(status: bytes) -> ProcessIds:
    """Parses `status`. Raises Unreadable, also for kernels before 4.1, which do not list the pids in namespaces."""
    pids, uid = _NSPID.search(status), _UID.search(status)
    if pids is None or uid is None:
        raise Unreadable("garbage" if status.strip() else "empty")
    return ProcessIds(tuple(map(int, pids[1].split())), int(uid[1]))


def children(data: bytes) -> list[int]:
    """The pids in a thread's `children`, which is empty for most threads. Raises Unreadable."""
    fields = data.split()
    if not all(field.isdigit() and len(field) <= 10 for field in fields):
        raise Unreadable("garbage")
    return [int(field) for field in fields]
