"""A wait for a batch that the loop asks for several times: with a timeout, or after it has seen that a queue is empty.

All questions are one wait, from the first one to the batch, if the loop has done hardly anything else in between. It
has not if no hook was called, and if the training thread had hardly any CPU time between the questions.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .meters.source import SourceMeter
    from .session import Session

_SHORT_NS = 200_000
"""The CPU time is not read for shorter distances between two questions."""
_WORK_NS = 1_000_000
_WORK = 4
"""Between its questions, the training thread may be on a CPU for _WORK_NS and a 1/_WORK of the wait."""

_now = time.monotonic_ns
_thread_cpu = time.thread_time_ns


class Polls:
    """The open wait of the training thread. Other threads may call it, too: they get False."""

    __slots__ = ("_began", "_cpu", "_kind", "_makers", "_meter", "_open", "_seen", "_session", "_worked", "asking")

    def __init__(self, session: Session, meter: SourceMeter):
        self._session = session
        self._meter = meter
        self._open = False
        self._began = self._seen = self._cpu = self._worked = 0
        self._kind = object
        self._makers: set[type] = set()
        """The classes whose last answer was a batch."""
        self.asking = False
        """Whether the loop is in one of its questions. Those that it asks inside are a part of it."""

    def asks(self, kind: type) -> bool:
        """The loop asks an object of this class for what may be a batch. Returns whether `nothing_came` or `came` must
        follow."""
        machine = self._session.machine
        if self.asking or not self._session.loop.in_base():
            return False
        self._kind = kind
        now = _now()
        if self._open:
            if not machine.mine():
                return False
            if self._session.loop.still_waits() and self._hardly_worked(now):
                self._begin()
                return True
            self._open = False
            self._meter.was_in_vain()
        if not self._meter.can_afford() or not self._session.loop.may_wait(self._meter):
            return False
        self._open = True
        self._began = self._seen = now
        self._worked, self._cpu = 0, _thread_cpu()
        self._begin()
        return True

    def _begin(self) -> None:
        self.asking = True
        self._session.loaders.awaits_maker = self._kind in self._makers

    def _hardly_worked(self, now: int) -> bool:
        gap = now - self._seen
        if gap > _SHORT_NS:
            cpu = _thread_cpu()
            self._worked += min(gap, cpu - self._cpu)
            self._cpu = cpu
        return self._worked <= _WORK_NS + (now - self._began) // _WORK

    def nothing_came(self) -> None:
        """Neither a batch nor anything else."""
        self.asking = self._session.loaders.awaits_maker = False
        self._seen = _now()

    def came(self, batch: bool, samples: int, training: bool) -> None:
        """Something has come. ``samples``: 0 if it is not known how many the batch has."""
        self._open = self.asking = self._session.loaders.awaits_maker = False
        if batch:
            self._makers.add(self._kind)
            self._session.loop.waited(self._meter, samples, training)
        else:
            self._makers.discard(self._kind)
            self._meter.was_in_vain()
