"""Measures how long a wait in a collective was for a CPU and not for the network, on a rank without an accelerator.

There, the collective runs in threads of this process: an event loop that sends and receives (gloo_tcp_loop), a thread
that runs the collective (pt_gloo_runloop), and the training thread, which waits for it. Each wakes the next. While one
of them is runnable but gets no CPU, the wait continues although the network is not slow.
"""

from __future__ import annotations

import time

from ..handlers import pass_on
from ..tasks import TaskClock
from ..threads import OwnThread, OwnThreads
from .budget import Budget

_LONG_NS = 1_000_000
_LONG_NS_PER_THREAD = 100_000
"""A wait is long from _LONG_NS on, plus this for each thread. A reading costs 1 µs per thread, and a wait needs two."""
_ALERT_WAITS = 16
_NOW_AND_THEN_NS = 20_000_000
_MEMORY = 0.9
"""The factor by which the weight of earlier measured waits shrinks at each new one. Short waits that are not measured
are split by the weighted mean."""

_now = time.monotonic_ns


class WaitMeter:
    """Measures the waits of one rank in collectives. The training thread must create it and call it.

    A wait begins with a reading if recent waits were long, and otherwise now and then, unless readings are too
    expensive (`due_ns`). A short wait without a reading is split like the measured ones. For a long wait without a
    reading, the time that the communication threads have queued since the last reading is an upper bound. The training
    thread also queued while it computed, so of its time only as much counts as in the waits that were measured.
    """

    __slots__ = (
        "_alert",
        "_asked",
        "_budget",
        "_first",
        "_last_ns",
        "_long_ns",
        "_measured",
        "_own_share",
        "_queued",
        "_read",
        "_share",
        "_spent_ns",
        "_task",
        "_threads",
        "due_ns",
    )

    def __init__(self, task: TaskClock, threads: OwnThreads):
        self._task = task
        self._threads = threads
        self._alert = _ALERT_WAITS
        self._budget = Budget()
        self._first = 0, 0  # when the first wait in a new group began, and what the training thread had queued then
        self._spent_ns = 0  # how long the reading at the start of the wait took
        self._long_ns = _LONG_NS
        self._read = False  # whether this wait began with a reading
        self._last_ns = 0  # when the last reading was
        self._asked: list[OwnThread] = []  # the threads of the last reading
        self._queued: list[int] = []  # the queue times of these threads at that reading; last, the training thread's
        self._measured = (0.0, 0.0, 0.0)  # weighted ns: queue, queue of the training thread, waits
        self._share = self._own_share = 0.0
        self.due_ns = 0
        """From when on a wait begins with a reading, ns of CLOCK_MONOTONIC."""

    def begin(self, now_ns: int) -> None:
        """A wait begins. Call it only if that is due."""
        self._read = True
        self._threads.look(now_ns)
        self._asked = [*self._threads.communication]
        self._long_ns = _LONG_NS + _LONG_NS_PER_THREAD * len(self._asked)
        self._queued = self._reading()
        self._last_ns = _now()
        self._spent_ns = self._last_ns - now_ns

    def queued(self, ns: int) -> int:
        """For how many ns of a wait of ``ns`` that ends now this rank's own threads got no CPU; 0 if not known."""
        if not self._read and ns < self._long_ns:  # most waits
            self._alert -= 1
            if self._alert == 0:
                self._set_due()
            share = self._share
            if share == 0.0:
                return 0
            self._task.book_queue(int(ns * self._own_share))
            return int(ns * share)
        alert = self._alert
        self._alert = _ALERT_WAITS if ns >= self._long_ns else alert - 1
        if not self._read and alert > 0 and ns < _NOW_AND_THEN_NS:
            self._task.book_queue(int(ns * self._own_share))
            queue = int(ns * self._share)
        else:
            queue = self._difference(ns) if self._queued else 0
        self._read = False
        self._set_due()
        return queue

    def begin_first(self) -> None:
        """The first wait in a new group begins. It is a part of making the group, with what the rank queues in it."""
        self._first = _now(), self._task.queue()

    def end_first(self) -> None:
        """It ends, if one has begun."""
        begun, queued = self._first
        if begun:
            self._task.keep_queue(queued, _now() - begun)
            self._first = 0, 0

    def _set_due(self) -> None:
        due = 0 if self._alert > 0 else self._last_ns + _NOW_AND_THEN_NS
        self.due_ns = max(due, self._budget.free_ns)

    def _difference(self, ns: int) -> int:
        """Splits a wait by what the threads have queued since the last reading."""
        begun = _now()
        before, self._queued = self._queued, self._reading()
        self._last_ns = _now()
        queues = [after - earlier for after, earlier in zip(self._queued, before, strict=True)]
        if not self._read and self._measured[2]:
            queues[-1] = min(queues[-1], int(ns * self._own_share))
        queue = in_line(queues, ns)
        if self._read:
            self._budget.spend(self._spent_ns + self._last_ns - begun, self._last_ns)
            own = min(max(queues[-1], 0), ns)
            self._task.book_queue(own)
            sum_queue, sum_own, sum_ns = self._measured
            sum_queue, sum_own = sum_queue * _MEMORY + queue, sum_own * _MEMORY + own
            sum_ns = sum_ns * _MEMORY + ns
            self._measured = sum_queue, sum_own, sum_ns
            self._share, self._own_share = sum_queue / max(sum_ns, 1.0), sum_own / max(sum_ns, 1.0)
        return queue

    def _reading(self) -> list[int]:
        queued = []
        for thread in self._asked:
            try:
                queued.append(thread.queue())
            except (OSError, ValueError, IndexError) as error:  # it has ended; the other threads still count
                pass_on(error)
                self._threads.drop(thread)
                queued.append(0)
        queued.append(self._task.queue())
        return queued


def in_line(queues: list[int], ns: int) -> int:
    """Estimates for how much of ``ns`` at least one of several threads queued for a CPU. ``queues``: ns per thread.

    The threads wake each other, so they mostly queue one after the other. But while one queues, another CPU may already
    run the next. The estimate assumes that their queues are independent. With two to four ranks on two cores, it was
    within 4 points of the scheduler's own trace (sched_switch, sched_wakeup). The sum of the queues was up to 13 points
    too high, and their maximum up to 13 points too low.
    """
    without = 1.0
    for queue in queues:
        without *= 1.0 - min(max(queue, 0) / max(ns, 1), 1.0)
    return int(ns * (1.0 - without))
