"""What /proc/<pid> says of one process in `stat` and `status`.

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
    """One process. Of the times, ticks are those of ``sysconf(_SC_CLK_TCK)``.

    What is said to be of the children is of those that ended and were waited for, with theirs.
    """

    state: str  # R, S, D, Z, T, t, I, X, ...; of its main thread
    parent: int
    major_faults: int  # of all its threads, those that ended included; so are the times
    children_major_faults: int
    user_ticks: int
    system_ticks: int
    children_user_ticks: int
    children_system_ticks: int
    threads: int
    start_ticks: int  # since the machine's start; negative before that of the reader's time namespace
    resident_pages: int
    block_io_ticks: int  # of its main thread; 0 unless kernel.task_delayacct was on when it started


def parse(data: bytes) -> PidStat:
    """Raises Unreadable."""
    if not data.strip():
        raise Unreadable("empty")
    # The name of the program stands in parentheses, and may hold some, or blanks.
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
"""Of the fields after the name: proc_pid_stat(5) counts from 1 and has two before."""


class ProcessIds(NamedTuple):
    """Who a process is."""

    pids: tuple[int, ...]  # in each pid namespace, from that of this procfs down to its own
    uid: int  # effective


def identity(status: bytes) -> ProcessIds:
    """From `status`. Raises Unreadable; kernels before 4.1 say nothing of namespaces."""
    pids, uid = _NSPID.search(status), _UID.search(status)
    if pids is None or uid is None:
        raise Unreadable("garbage" if status.strip() else "empty")
    return ProcessIds(tuple(map(int, pids[1].split())), int(uid[1]))


def children(data: bytes) -> list[int]:
    """The pids in a thread's `children`, which is empty for most. Raises Unreadable."""
    fields = data.split()
    if not all(field.isdigit() and len(field) <= 10 for field in fields):
        raise Unreadable("garbage")
    return [int(field) for field in fields]
