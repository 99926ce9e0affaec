"""Measures the waits for batches of one loader, and decides which waits to measure.

Reading the times of another task takes some microseconds. That is negligible for a long wait, but too much in a loop
whose batches arrive at once. So a wait begins with a reading only if recent waits were long, and otherwise now and
then. Readings of short waits have a budget: on busy cores, a long wait now and then would cause readings of nearly all.
A short wait without a reading is split like the last one with a reading. A long wait without a reading is measured from
the last reading: the CPU time since then is an upper bound of what the worker had during the wait. So a rare long stall
is still split correctly.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any

from ...ledger.causes import CAUSE
from ..books import Parts
from ..splits import cpu_between, delay, shares, split_data_wait, split_handoff, split_own_read
from ..tasks import CpuTimes, TaskClock, WorkerClock, queued
from ..threads import OwnThreads
from .budget import Budget
from .own import OwnTimes

if TYPE_CHECKING:
    from ..loaders import Loader

_LONG_NS = 1_000_000
_NOW_AND_THEN = 8
_ALL = 0.98
_REST: Parts = ((CAUSE["data_handoff"], -1),)
_CPU, _QUEUE, _READ_REST = CAUSE["data_cpu"], CAUSE["data_queue"], (CAUSE["data_read"], -1)
_ALL_CPU: Parts = ((_CPU, -1),)
_ALL_START: Parts = ((CAUSE["data_start"], -1),)
_ALERT_WAITS = 16
_MOST_WORKERS = 64
"""The most workers of one loader whose descriptors are kept open. Waits for other workers are not split."""

_now = time.monotonic_ns
_thread_cpu = time.thread_time_ns


class OwnMeter:
    """Measures batches that the training thread makes itself (``num_workers=0``).

    CPU time is that of the whole process, so that threads that help count. The time for which they wait for a CPU
    counts, too. Threads that run collectives are left out. Other threads that run at that time count as helpers.

    A short wait without a reading is split like the last one with a reading.
    """

    __slots__ = (
        "_alert",
        "_budget",
        "_cpu_share",
        "_loader",
        "_queue_share",
        "_read",
        "_spent_ns",
        "_task",
        "_threads",
        "_times",
        "_waits",
        "wants_begin",
    )

    def __init__(self, task: TaskClock | None, loader: Loader, threads: OwnThreads):
        self._task = task
        self._loader = loader
        self._threads = threads
        self._times = OwnTimes()
        self._alert = _ALERT_WAITS  # how many of the next waits begin with a reading
        self.wants_begin = True
        """Whether ``begin`` must be called for the next wait."""
        self._waits = 0
        self._budget = Budget()
        self._spent_ns = 0  # how long the reading at the start of the wait took
        self._read = False
        self._cpu_share, self._queue_share = 1.0, 0.0

    def begin(self, iterator: Any) -> None:
        now = _now()
        if now >= self._budget.free_ns:
            self._read = True
            self._times.begin(self._task, self._threads)
            self._spent_ns = _now() - now

    def resume(self) -> None:
        """The wait goes on, after another phase has interrupted it."""
        self.begin(None)

    def split(self, ns: int) -> Parts:
        if ns >= _LONG_NS:
            self._alert = _ALERT_WAITS
            self._loader.waited(ns)
        else:
            self._alert -= 1
        self._waits += 1
        self.wants_begin = self._alert > 0 or self._waits % _NOW_AND_THEN == 0
        if not self._read and ns < _LONG_NS:
            self._times.book(self._task, ns, None)
            if self._cpu_share > _ALL:
                return _ALL_CPU
            return (_CPU, int(ns * self._cpu_share)), (_QUEUE, int(ns * self._queue_share)), _READ_REST
        begun = _now()
        # If there was no reading, the time since the last reading is an upper bound.
        spent = self._times.since(self._task, ns)
        cpu, queue = spent.own + spent.others, spent.own_queue + delay(spent.others, spent.others_queue)
        self._cpu_share = min(1.0, cpu / max(ns, 1))
        self._queue_share = max(0.0, min(1.0 - self._cpu_share, queue / max(ns, 1)))
        if self._read:
            self._times.book(self._task, ns, spent)
        self._read = False
        pay(self._budget, ns, self._spent_ns, begun)
        return split_own_read(cpu, queue)


class WorkerMeter:
    """Measures batches that worker processes make. Reads the times of the worker that owes the next batch."""

    __slots__ = (
        "_alert",
        "_before",
        "_budget",
        "_clock",
        "_clocks",
        "_cpu",
        "_helpers_queue",
        "_last",
        "_loader",
        "_made",
        "_over",
        "_pin",
        "_pinned",
        "_queue",
        "_read",
        "_shares",
        "_spent_ns",
        "_starting",
        "_task",
        "_waits",
        "_worker",
    )

    wants_begin = True

    def __init__(self, task: TaskClock | None, loader: Loader):
        self._task = task
        self._loader = loader
        self._alert = _ALERT_WAITS
        self._waits = 0
        self._budget = Budget()
        self._spent_ns = 0  # how long the reading at the start of the wait took
        self._clocks: dict[int, WorkerClock] = {}
        self._last: dict[int, CpuTimes | None] = {}
        self._helpers_queue: dict[int, int] = {}
        self._pin: TaskClock | None = None
        self._clock: WorkerClock | None = None
        self._before: CpuTimes | None = None
        self._shares: tuple[tuple[int, float], ...] = ()
        self._read = self._made = self._over = self._starting = False
        self._worker = self._cpu = self._queue = self._pinned = 0

    def begin(self, iterator: Any) -> None:
        self._clock = None
        info = iterator._task_info.get(iterator._rcvd_idx)
        # None: there are no more batches. One element: that worker owes the batch. Two elements: it arrived early and
        # is ready.
        self._over = info is None
        if info is None or len(info) != 1:
            return
        worker = info[0]
        clock = self._clocks.get(worker)
        if clock is None:
            if len(self._clocks) >= _MOST_WORKERS:
                return
            clock = self._clocks[worker] = WorkerClock(iterator._workers[worker].pid)
            self._last[worker] = clock.read()
            self._loader.has_worker(iterator._workers[worker].pid)
            self._starting = _is_starting(iterator, worker)
        self._clock, self._worker = clock, worker
        self._waits += 1
        self._read = False
        if (self._alert > 0 or self._waits % _NOW_AND_THEN == 0) and (now := _now()) >= self._budget.free_ns:
            self._read = True
            self._made = _is_made(iterator, worker)
            if self._made:
                self._queue = queued(self._task) + clock.helpers_queue()
            else:
                self._last[worker] = clock.read()
                self._pinned = self._pin_cpu(iterator)
                self._cpu = _thread_cpu()
            self._spent_ns = _now() - now
        self._before = self._last[worker]

    def resume(self) -> None:
        """The wait goes on, after another phase has interrupted it."""
        clock = self._clock
        if clock is None or self._starting:
            return
        self._read = True
        if self._made:
            self._queue = queued(self._task) + clock.helpers_queue()
        else:
            self._before = self._last[self._worker] = clock.read()
            self._pinned = self._pin_now()
            self._cpu = _thread_cpu()

    def split(self, ns: int) -> Parts | None:
        if ns >= _LONG_NS:
            self._alert = _ALERT_WAITS
            self._loader.waited(ns)
        else:
            self._alert -= 1
        clock = self._clock
        if clock is None:
            return _ALL_START if self._over else None  # at the end, the loader waits for its workers to exit
        if self._starting:
            self._starting = False
            self._last[self._worker] = clock.read()
            return _ALL_START
        if not self._read and ns < _LONG_NS:
            return tuple([(cause, int(ns * share)) for cause, share in self._shares]) + _REST
        begun = _now()
        if self._read and self._made:
            parts = split_handoff(queued(self._task) + clock.helpers_queue() - self._queue)
        else:
            parts = self._split_making(clock, ns)
        pay(self._budget, ns, self._spent_ns, begun)
        if parts is not None:
            self._shares = shares(parts, ns)
        return parts

    def _split_making(self, clock: WorkerClock, ns: int) -> Parts | None:
        """Splits the wait for a batch that is being made."""
        before, after = self._before, clock.read()
        self._last[self._worker] = after
        if before is None or after is None:
            return None
        handoff = 0
        if self._read:
            own = _thread_cpu() - self._cpu
            handoff = own + self._pin_now() - self._pinned
            if self._task is not None:
                self._task.booked_ns += own
        helpers_queue = 0
        if cpu_between(before, after)[1] > ns // 10:
            queue = clock.helpers_queue()
            helpers_queue = queue - self._helpers_queue.get(self._worker, queue)
            self._helpers_queue[self._worker] = queue
        return split_data_wait(before, after, handoff, helpers_queue)

    def _pin_cpu(self, iterator: Any) -> int:
        """CPU time of the thread that copies batches to pinned memory, which is a part of the handoff."""
        if self._pin is None and getattr(iterator, "_pin_memory", False):
            tid = getattr(getattr(iterator, "_pin_memory_thread", None), "native_id", None)
            if tid is not None:
                self._pin = TaskClock(os.getpid(), tid)
        return self._pin_now()

    def _pin_now(self) -> int:
        reading = self._pin.read() if self._pin is not None else None
        return reading.cpu if reading is not None else 0


def pay(budget: Budget, ns: int, spent_ns: int, begun: int) -> None:
    """Charges the readings of a wait of ``ns`` to the budget. Readings of long waits are free."""
    if ns >= _LONG_NS:
        budget.free_ns = 0
    else:
        now = _now()
        budget.spend(spent_ns + now - begun, now)


def _is_made(iterator: Any, worker: int) -> bool:
    """Whether the batch that a worker owes is made and is only on its way.

    A worker makes its batches in the order of the requests. So the oldest one that has not arrived is made if the
    worker has started with the next one.
    """
    return _taken(iterator, worker) >= 2


def _is_starting(iterator: Any, worker: int) -> bool:
    """Whether a new worker has not taken its first request yet, because it imports modules and loads the dataset.

    A worker that is forked takes it at once, but perhaps later than this is asked.
    """
    process = iterator._workers[worker]
    method = getattr(process, "_start_method", None) or multiprocessing.get_start_method(allow_none=True)
    return method in ("spawn", "forkserver") and _taken(iterator, worker) <= 0


def _taken(iterator: Any, worker: int) -> int:
    """How many requests a worker has taken whose batches have not arrived."""
    owed = sum(1 for info in iterator._task_info.values() if len(info) == 1 and info[0] == worker)
    return owed - iterator._index_queues[worker].qsize()
