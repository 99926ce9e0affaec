"""Splits waits for batches that threads or processes of the training make for it, without torch's loader.

It is not known what makes the batch that the loop waits for, so the meter reads everything that may: the threads of
this process, its children that multiprocessing has started, and the data worker that another thread waits for.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from ...ledger.layout import WORD_AT
from ..books import Parts
from ..splits import shares, split_source
from ..tasks import CpuTimes, WorkerClock
from .budget import Budget, usual
from .data import pay
from .own import OwnTimes

if TYPE_CHECKING:
    from ..session import Session

_LONG_NS = 1_000_000
_MOST_CHILDREN = 16
_IN_VAIN = 100
"""Readings before calls that turn out not to be waits for batches take at most this part of the time."""
_AT_ONCE_NS = 50_000_000
"""Such readings may take as much at once as they may take in this time."""

_PLAIN_NS = 3_000
"""What a boundary between phases costs, beside the readings."""

_AWAITED_AT = WORD_AT["data_awaited_ns"][0]
_now = time.monotonic_ns


class SourceMeter:
    """Measures the waits of one way to get batches. A wait for which there is no budget is split like the last one."""

    __slots__ = (
        "_began_ns",
        "_budget",
        "_children",
        "_free_ns",
        "_makers",
        "_read",
        "_receives",
        "_session",
        "_shares",
        "_spent_ns",
        "_times",
    )

    def __init__(self, session: Session, *, receives: bool):
        """``receives``: the training thread only receives what others make, so its own CPU time is the handoff."""
        self._session = session
        self._times = OwnTimes()
        self._receives = receives
        self._budget = Budget()
        self._began_ns = self._free_ns = 0
        self._spent_ns = 0
        self._read = False
        self._shares: tuple[tuple[int, float], ...] = ()
        self._children: dict[int, WorkerClock] = {}
        self._makers: list[tuple[WorkerClock, CpuTimes]] = []

    def begin(self) -> None:
        """A wait begins. Never raises."""
        self._read = False
        self._began_ns = now = _now()
        if now < self._budget.free_ns:
            return
        try:
            self._makers = [(clock, times) for clock in self._find() if (times := clock.read()) is not None]
            self._times.begin(self._session.task, self._session.threads)
            self._read = True
            self._spent_ns = usual(_now() - now, self._spent_ns)
        except Exception as error:  # the fence around the training
            self._session.fault("sources", error)

    resume = begin

    def can_afford(self) -> bool:
        """Whether to measure a call that may be a wait for a batch. A loop may poll a queue thousands of times a
        second."""
        return _now() >= self._free_ns

    def was_in_vain(self) -> None:
        """The call was not a wait for a batch."""
        cost = _PLAIN_NS + (self._spent_ns if self._read else 0)
        self._free_ns = max(self._free_ns, self._began_ns - _AT_ONCE_NS) + _IN_VAIN * cost

    def split(self, ns: int) -> Parts | None:
        if ns >= _LONG_NS:
            (loader := self._session.loaders.unknown()).waited(ns)
            if self._receives:
                loader.add(_AWAITED_AT, ns)
        task = self._session.task
        if not self._read:
            self._times.book(task, ns, None)
            *parts, rest = self._shares or (None,)
            if rest is None:
                return None
            return (*[(cause, int(ns * share)) for cause, share in parts], (rest[0], -1))
        begun = _now()
        spent = self._times.since(task, ns)
        self._times.book(task, ns, spent)
        elsewhere = [
            # The time of programs that it starts is not known to the ns once they have ended.
            (max(0, after.process_cpu - before.process_cpu), max(0, after.queue - before.queue))
            for clock, before in self._makers
            if (after := clock.read()) is not None
        ]
        parts = split_source(ns, *spent, elsewhere, receives=self._receives)
        self._shares = shares(parts, ns)
        pay(self._budget, ns, self._spent_ns, begun)
        return parts

    def _find(self) -> list[WorkerClock]:
        """The other processes that may make the batch."""
        pid = self._session.loaders.owes_elsewhere()
        pids = {pid} if pid is not None else children() - self._session.loaders.pids
        for gone in self._children.keys() - pids:
            self._children.pop(gone).close()
        for new in sorted(pids - self._children.keys())[: _MOST_CHILDREN - len(self._children)]:
            self._children[new] = WorkerClock(new)
        return [*self._children.values()]


def children() -> set[int]:
    """The processes that multiprocessing has started in this one. (Its ``active_children`` would also reap them.)"""
    process: Any = sys.modules.get("multiprocessing.process")
    return {pid for child in tuple(getattr(process, "_children", ())) if (pid := _pid_of(child)) is not None}


def _pid_of(child: Any) -> int | None:
    return getattr(getattr(child, "_popen", None), "pid", None)
