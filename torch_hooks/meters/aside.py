"""Measures how long the training thread is idle in evaluations and rollouts, on a rank without an accelerator.

It is idle while it is neither on a CPU nor queued for one. `BlockedMeter` knows how long the loop's own code was
blocked in a span, but not in which kind of work. So each kind loses the part of the blocked time that it has of the
idle time.
"""

from __future__ import annotations

import time

from ...ledger.causes import PHASE
from ..tasks import TaskClock, queued

_KINDS = (PHASE["eval"], PHASE["rollout"])

_thread_cpu = time.thread_time_ns


class AsideMeter:
    """Splits nothing: it only keeps what it measures. All times are ns. The training thread must call it."""

    __slots__ = ("_begun", "_idle", "_phase", "measures", "parts", "task")

    def __init__(self) -> None:
        self.task: TaskClock | None = None
        """The training thread."""
        self.measures = True
        """Whether the next interval is measured. One that is short takes hardly longer than that."""
        self._phase = 0
        self._begun: int | None = None
        self._idle = dict.fromkeys(_KINDS, 0)
        self.parts = dict.fromkeys(_KINDS, 0.0)
        """By phase: the part that it had of the idle time of the last span."""

    def begin(self, phase: int) -> None:
        """The training thread enters ``phase``, or returns to it."""
        self._phase, self._begun = phase, queued(self.task) + _thread_cpu() if self.measures else None
        self.measures = True

    def split(self, ns: int) -> None:
        """An interval of ``ns`` ends."""
        if self._begun is not None:
            self.add(self._phase, ns - (queued(self.task) + _thread_cpu() - self._begun))

    def add(self, phase: int, idle: int) -> None:
        """Work in ``phase`` was idle for so long."""
        if phase in self._idle:
            self._idle[phase] += max(0, idle)

    def move(self, phase: int, right: int, part: float) -> None:
        """A part of the work in ``phase`` was of the phase ``right``."""
        if idle := round(self._idle.get(phase, 0) * min(part, 1.0)):
            self._idle[phase] -= idle
            self.add(right, idle)

    def settle(self, idle: int) -> None:
        """A span ends in which all work together was idle for so long."""
        whole = max(idle, sum(self._idle.values()), 1)
        self.parts = {phase: ns / whole for phase, ns in self._idle.items()}
        self._idle = dict.fromkeys(_KINDS, 0)
