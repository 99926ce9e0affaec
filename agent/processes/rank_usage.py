"""Sums of what a rank and its workers have used. The sums must not fall when a process ends.

For CPU time, I/O and page faults the kernel does most of the work: when a parent waits for an ended child, the kernel
adds the child's usage to the parent's (`wait_task_zombie` in the kernel's kernel/exit.c). So the sum is the usage of
the rank's process and of its live descendants, each with the usage of its ended children. It also contains workers that
lived only between two scrapes. The kernel does not do this for times on the run queue: there, the last value read of a
process is kept when it ends.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple


class Rising:
    """A counter made from a sum that can fall for two reasons.

    If a child is waited for after its parent was read and before it was read itself, its usage is missing from the sum,
    and present again at the next scrape. In the meantime the counter does not change. If nobody waits for a child
    (SIGCHLD is ignored, or its parent ended first), its usage is lost. So if the sum is still lower at the next scrape,
    the counter continues from its last value.
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
    """How long the main threads of some processes have waited."""

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
    """The waits of all processes of one role of a rank, including ended ones."""

    _ended: list[int] = field(default_factory=lambda: [0, 0, 0])
    _living: dict[int, _Waiter] = field(default_factory=dict)

    def see(self, pid: int, start_ticks: int, waits: Waits) -> None:
        """Records the waits of one process. They never fall: the blocked time may, because its clocks are inexact."""
        waiter = self._living.get(pid)
        if waiter is None or waiter.start_ticks != start_ticks:
            self._end(pid)
            waiter = self._living[pid] = _Waiter(start_ticks)
        waiter.runqueue_ns = max(waiter.runqueue_ns, waits.runqueue_ns)
        waiter.blocked_ns = max(waiter.blocked_ns, waits.blocked_ns)
        waiter.block_io_ticks = max(waiter.block_io_ticks, waits.block_io_ticks)

    def keep(self, pids: Collection[int]) -> None:
        """Ends all other processes."""
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
