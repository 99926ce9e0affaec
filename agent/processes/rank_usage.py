"""What a rank and its workers used so far: sums over processes that come and go, which must not fall when one goes.

For CPU time, I/O and page faults the kernel does most of it: what a child used is added to its parent when it is waited
for (`wait_task_zombie` in the kernel's kernel/exit.c). So a rank's process, with what its ended children left it, plus
its living descendants, with what theirs left them, is the whole, also of workers that lived between two scrapes.
For the run queue it does not: there the last value that was seen of a process is kept when it ends.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple


class Rising:
    """A sum that may dip and must not be seen to.

    A child that was waited for after its parent was read and before it was itself is in neither, but back at the next
    scrape: the sum waits for it. One that nobody waited for (SIGCHLD ignored, or its parent ended first) leaves for
    good: a sum that is still too low at the next scrape goes on from where it was.
    """

    __slots__ = ("_added", "_dipped", "_last")

    def __init__(self) -> None:
        self._added = 0
        self._last = 0
        self._dipped = False

    def value(self, raw: int) -> int:
        value = raw + self._added
        if value >= self._last:
            self._last = value
            self._dipped = False
        elif self._dipped:
            self._added = self._last - raw
            self._dipped = False
        else:
            self._dipped = True
        return self._last


class Waits(NamedTuple):
    """How long the main threads of some processes waited."""

    runqueue_ns: int
    blocked_ns: int
    block_io_ticks: int


@dataclass(slots=True)
class _Waiter:
    start_ticks: int
    runqueue_ns: int = 0
    blocked_ns: int = 0
    block_io_ticks: int = 0


@dataclass(slots=True)
class RankWaits:
    """The waits of the processes of one role of one rank, those that ended included."""

    _ended: list[int] = field(default_factory=lambda: [0, 0, 0])
    _living: dict[int, _Waiter] = field(default_factory=dict)

    def see(self, pid: int, start_ticks: int, waits: Waits) -> None:
        """Takes down one process. A blocked time that falls, by the fuzz of its clocks, stays where it was."""
        waiter = self._living.get(pid)
        if waiter is None or waiter.start_ticks != start_ticks:
            self._end(pid)
            waiter = self._living[pid] = _Waiter(start_ticks)
        waiter.runqueue_ns = max(waiter.runqueue_ns, waits.runqueue_ns)
        waiter.blocked_ns = max(waiter.blocked_ns, waits.blocked_ns)
        waiter.block_io_ticks = max(waiter.block_io_ticks, waits.block_io_ticks)

    def keep(self, pids: Collection[int]) -> None:
        """All others have ended."""
        for pid in [pid for pid in self._living if pid not in pids]:
            self._end(pid)

    def total(self) -> Waits:
        runqueue, blocked, block_io = self._ended
        for waiter in self._living.values():
            runqueue += waiter.runqueue_ns
            blocked += waiter.blocked_ns
            block_io += waiter.block_io_ticks
        return Waits(runqueue, blocked, block_io)

    def _end(self, pid: int) -> None:
        waiter = self._living.pop(pid, None)
        if waiter:
            self._ended[0] += waiter.runqueue_ns
            self._ended[1] += waiter.blocked_ns
            self._ended[2] += waiter.block_io_ticks
