"""What the training thread and its process spend in a wait for a batch."""

from __future__ import annotations

import time
from typing import NamedTuple

from ..tasks import TaskClock, queued
from ..threads import OthersClock, OwnThreads

_thread_cpu = time.thread_time_ns
_process_cpu = time.process_time_ns


class Spent(NamedTuple):
    """ns, in a wait."""

    own: int
    """CPU time of the training thread."""
    others: int
    """CPU time of all other threads, without those that run collectives."""
    own_queue: int
    """How long the training thread waited for a CPU."""
    others_queue: int
    """The same for those other threads, added up. It is 0 if they had hardly any CPU time in the wait before."""


class OwnTimes:
    """Reads these times, and books those of the training thread and of libraries: the blocked time of a step leaves
    them out.

    A wait without a reading is booked like the last one with a reading. If it is long, it has what was spent since the
    last reading, without what was probably spent in the steps since then: as much as in the time before that reading.
    """

    __slots__ = (
        "_began",
        "_booked_share",
        "_cpu",
        "_ended",
        "_others",
        "_outside",
        "_queue",
        "_queue_share",
        "_thread_cpu",
    )

    def __init__(self) -> None:
        self._others = OthersClock()
        self._queue = self._cpu = self._thread_cpu = 0
        self._booked_share = self._queue_share = 0.0
        self._began = 0  # ns of CLOCK_MONOTONIC
        self._ended = 0, 0, 0, 0  # the time, and what had been spent when the last wait with a reading ended
        self._outside = 0.0, 0.0, 0.0  # own, others, queue: what was spent in a ns between two waits

    def begin(self, task: TaskClock | None, threads: OwnThreads) -> None:
        """Reads them. ``task`` is the training thread."""
        self._queue = queued(task)
        self._others.begin(threads)
        self._cpu = _process_cpu()
        self._thread_cpu = _thread_cpu()
        self._began = time.monotonic_ns()
        ended, thread_cpu, cpu, queue = self._ended
        if ended and (between := self._began - ended) > 0:
            own = self._thread_cpu - thread_cpu
            others = max(0, self._cpu - cpu - own)
            self._outside = own / between, others / between, max(0, self._queue - queue) / between

    def since(self, task: TaskClock | None, ns: int, *, read: bool = True) -> Spent:
        """What was spent since ``begin``, at the end of a wait of ``ns``. ``read``: that was when the wait began."""
        # The queue is read first: asking for CPU time may make the kernel take the CPU away, which adds to the queue.
        queued_ns, thread_cpu, cpu = queued(task), _thread_cpu(), _process_cpu()
        queue, own = queued_ns - self._queue, thread_cpu - self._thread_cpu
        whole = others = max(0, cpu - self._cpu - own)
        communication, others_queue = self._others.spent(ns, others)
        others -= communication
        now = time.monotonic_ns()
        self._ended = now, thread_cpu, cpu, queued_ns
        if not read:
            before = max(0, now - self._began - ns)
            own, rest, queue = (
                max(0, spent - round(rate * before))
                for spent, rate in zip((own, whole, queue), self._outside, strict=True)
            )
            others = min(others, rest)  # both are without the collectives before the wait
        return Spent(own, others, queue, others_queue)

    def book(self, task: TaskClock | None, ns: int, spent: Spent | None) -> None:
        """Books a wait of ``ns``. ``spent`` is None if there was no reading at its beginning."""
        if task is None:
            return
        if spent is None:
            task.booked_ns += int(ns * self._booked_share)
            task.booked_queue_ns += int(ns * self._queue_share)
            return
        queue = min(max(spent.own_queue, 0), ns)
        booked = min(spent.own + queue, ns)
        self._booked_share, self._queue_share = booked / max(ns, 1), queue / max(ns, 1)
        task.booked_ns += booked
        task.booked_queue_ns += queue
        task.helped_ns += self._others.helped_ns
