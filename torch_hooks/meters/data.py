"""Measures the waits for batches of one loader, and decides which waits to measure.

Reading the times of another task takes some microseconds. That is negligible for a long wait, but too much in a loop
whose batches arrive at once. So readings have a budget. A short wait without a reading is split like the last one with
a reading. A long wait without a reading is measured from the last reading. The CPU time of a worker since then is an
upper bound of what it had during the wait; see `OwnTimes` for batches that the loop makes itself.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ...ledger.causes import CAUSE
from ...ledger.doing import start_ticks
from ...ledger.layout import WORD_AT
from ..books import Parts
from ..splits import (
    as_first,
    blocked_of,
    cpu_between,
    delay,
    shares,
    split_data_wait,
    split_handoff,
    split_start,
)
from ..tasks import CpuTimes, TaskClock, WorkerClock, queued
from ..threads import OwnThreads
from .budget import Budget
from .iterators import exhausted, making, owes, received, requested, taken
from .own import OwnTimes
from .worker_looks import WorkerLooks
from .worker_reads import READ_AT, Reads, faults_of, reads_of
from .worker_start import StartWatch

if TYPE_CHECKING:
    from ..loaders import Loader

_LONG_NS = 1_000_000
_ALL = 0.98
_REST: Parts = ((CAUSE["data_handoff"], -1),)
_CPU, _QUEUE, _READ_REST = CAUSE["data_cpu"], CAUSE["data_queue"], (CAUSE["data_read"], -1)
_BLOCKED_REST = CAUSE["host_blocked"], -1
_ALL_CPU: Parts = ((_CPU, -1),)
_ALL_START: Parts = ((CAUSE["data_start"], -1),)
_UNKNOWN: Parts = ((CAUSE["unattributed"], -1),)
_BLOCKED = 4
"""What a worker read is counted after waits of which at least 1/_BLOCKED was blocked."""
_READS_EVERY_NS = 10_000_000
_OWN_CPU_AT, _GONE_AT, _EXHAUSTED_AT, _EXHAUSTED_WORKERS_AT = (
    WORD_AT[name][0] for name in ("data_own_cpu_ns", "data_gone_ns", "data_exhausted_ns", "exhausted_worker_ns")
)
_SENDS = 4
"""Work on a batch that is on its way, for at least 1/_SENDS of a wait, is what the loop waits for."""
_MOST_WORKERS = 64
"""The most workers of one loader whose descriptors are kept open. Waits for other workers are not split."""

_now = time.monotonic_ns
_thread_cpu = time.thread_time_ns


class OwnMeter:
    """Measures batches that the training thread makes itself (``num_workers=0``).

    CPU time is that of the whole process, so that threads that help count. The time for which they wait for a CPU
    counts, too. Threads that run collectives are left out. Other threads that run at that time count as helpers.

    A short wait without a reading is split like the last one with a reading. Where another thread holds Python's lock
    meanwhile, it does not help.
    """

    __slots__ = (
        "_budget",
        "_cpu_share",
        "_first",
        "_loader",
        "_own_share",
        "_queue_share",
        "_read",
        "_rest",
        "_spent_ns",
        "_task",
        "_threads",
        "_times",
        "due_ns",
    )

    def __init__(self, task: TaskClock | None, loader: Loader, threads: OwnThreads):
        self._task = task
        self._loader = loader
        self._threads = threads
        self._times = OwnTimes()
        self.due_ns = 0
        """Before this time (CLOCK_MONOTONIC), ``begin`` reads nothing."""
        self._budget = Budget()
        self._spent_ns = 0  # how long the reading at the start of the wait took
        self._read = False
        self._cpu_share, self._queue_share = 1.0, 0.0
        self._own_share = 1.0  # of a wait: the CPU time of the training thread itself
        self._rest = _READ_REST  # what the other shares leave
        self._first = False  # whether it is the first batch after `__iter__`

    def begin(self, iterator: Any) -> None:
        self._first = iterator is not None and not iterator._num_yielded
        now = _now()
        if now >= self.due_ns:
            self._read = True
            self._times.begin(self._task, self._threads)
            self._spent_ns = _now() - now

    def resume(self) -> None:
        """The wait goes on, after another phase has interrupted it."""
        first = self._first
        self.begin(None)
        self._first = first

    def split(self, ns: int) -> Parts:
        parts = self._split(ns)
        self._loader.add(_OWN_CPU_AT, int(ns * self._own_share))
        first, self._first = self._first, False  # not every wait begins with `begin`
        return as_first(parts) if first else parts

    def _split(self, ns: int) -> Parts:
        if ns >= _LONG_NS:
            self._loader.waited(ns)
        if not self._read and ns < _LONG_NS:
            self._times.book(self._task, ns, None)
            if self._cpu_share > _ALL:
                return _ALL_CPU
            return (_CPU, int(ns * self._cpu_share)), (_QUEUE, int(ns * self._queue_share)), self._rest
        begun = _now()
        spent = self._times.since(self._task, ns, read=self._read)
        others = ns - spent.own - spent.own_queue
        locked = self._threads.lock.is_awaited(begun) and 2 * spent.others >= others  # its holder computes meanwhile
        others, self._rest = (0, _BLOCKED_REST) if locked else (spent.others, _READ_REST)
        cpu, queue = spent.own + others, spent.own_queue + delay(others, spent.others_queue)
        self._cpu_share = min(1.0, cpu / max(ns, 1))
        self._queue_share = max(0.0, min(1.0 - self._cpu_share, queue / max(ns, 1)))
        self._own_share = min(1.0, spent.own / max(ns, 1))
        if self._read:
            self._times.book(self._task, ns, spent)
        self._read = False
        pay(self._budget, ns, self._spent_ns, begun)
        self.due_ns = self._budget.free_ns
        return (_CPU, max(0, cpu)), (_QUEUE, max(0, queue)), self._rest


class _Delivered(NamedTuple):
    """The times of a worker when a batch of it had come."""

    batches: int
    """The number of batches that the loop had from all workers."""
    ns: int
    times: CpuTimes


class WorkerMeter:
    """Measures batches that worker processes make. Reads the times of the worker that owes the next batch.

    The loop waits only for the end of what a worker does for a batch: if each of four workers reads first and decodes
    then, all waits may be in the decoding, although the reads take longer. So if the worker has made batches all the
    time since one of it came, a wait is split like the whole of that time. That is so if the loop has to wait for its
    next one, because the request for it was sent then, or earlier.
    """

    __slots__ = (
        "_before",
        "_budget",
        "_clock",
        "_clocks",
        "_cpu",
        "_delivered",
        "_exhausted",
        "_faults",
        "_first",
        "_helpers_queue",
        "_last",
        "_loader",
        "_looks",
        "_made",
        "_over",
        "_own_queue",
        "_pin",
        "_pinned",
        "_read",
        "_reads",
        "_reads_due_ns",
        "_received",
        "_sent",
        "_shares",
        "_spent_ns",
        "_start",
        "_starting",
        "_task",
        "_ticks",
        "_unknown",
        "_worker",
        "_workers",
    )

    due_ns = 0

    def __init__(self, task: TaskClock | None, loader: Loader):
        self._task = task
        self._loader = loader
        self._budget = Budget()
        self._spent_ns = 0  # how long the reading at the start of the wait took
        self._clocks: dict[int, WorkerClock] = {}
        self._last: dict[int, CpuTimes | None] = {}
        self._delivered: dict[int, _Delivered] = {}
        self._received = -1  # the number of batches that the loop has had; -1: the wait was interrupted
        self._helpers_queue: dict[int, int] = {}
        self._reads: dict[int, Reads | None] = {}
        self._reads_due_ns = 0
        self._ticks: dict[int, int] = {}  # when each worker was started
        self._workers: list[Any] = []  # their processes; the iterator itself must not be kept alive
        self._looks = WorkerLooks()
        self._pin: TaskClock | None = None
        self._clock: WorkerClock | None = None
        self._before: CpuTimes | None = None
        self._start: StartWatch | None = None
        self._shares: tuple[tuple[int, float], ...] = ()
        self._read = self._made = self._over = self._starting = False
        self._first = False  # whether it is the first batch of its worker after `__iter__`
        self._unknown = False  # whether nothing can be read about the worker
        self._worker = self._cpu = self._pinned = self._faults = self._exhausted = 0
        self._sent = (0, 0, 0)
        self._own_queue = 0  # for how long the training thread had queued for a CPU when the wait began

    def begin(self, iterator: Any) -> None:
        self._clock = None
        self._starting = self._unknown = self._made = False
        worker = owes(iterator)
        # None: there are no more batches. Below 0: the batch arrived early and is ready.
        self._over = worker is None
        if worker is None or worker < 0:
            return
        self._received = received(iterator)
        self._exhausted = exhausted(iterator)
        self._first = self._received < len(iterator._workers)
        clock = self._clocks.get(worker) or self._meet(iterator, worker)
        if clock is None:
            return
        self._clock, self._worker = clock, worker
        self._loader.owes(clock.pid, self._ticks[worker], self._workers)
        self._read = False
        if self._starting:
            return
        if (now := _now()) >= self._budget.free_ns:
            self._read = True
            self._made = taken(iterator, worker) >= 2  # see `taken`
            if self._made:
                self._sent = self._senders(clock)
                self._faults = faults_of(clock.pid)
            elif self._looks.due():
                self._looks.look(making(iterator))
            self._last[worker] = clock.read()
            self._pinned = self._pin_cpu(iterator)
            self._own_queue, self._cpu = queued(self._task), _thread_cpu()
            self._spent_ns = _now() - now
        self._before = self._last[worker]

    def _meet(self, iterator: Any, worker: int) -> WorkerClock | None:
        """The first wait for a worker."""
        if len(self._clocks) >= _MOST_WORKERS:
            self._unknown = True
            return None
        pid = iterator._workers[worker].pid
        clock = self._clocks[worker] = WorkerClock(pid)
        self._last[worker] = clock.read()
        self._reads[worker] = reads_of(pid)
        self._ticks[worker] = start_ticks(pid)
        self._workers = iterator._workers
        self._loader.has_worker(pid)
        queue = iterator._index_queues[worker]
        if (requests := requested(iterator, worker)) and queue.qsize() >= requests:
            self._starting = True
            self._start = StartWatch(queue, requests, pid)
        return clock

    def resume(self) -> None:
        """The wait goes on, after another phase has interrupted it."""
        clock = self._clock
        if clock is None:
            return
        self._loader.owes(clock.pid, self._ticks[self._worker], self._workers)
        if self._starting and self._start is not None:
            self._start = self._start.again()
            return
        self._read = True
        self._received = -1
        if self._made:
            self._sent = self._senders(clock)
            self._faults = faults_of(clock.pid)
        self._before = self._last[self._worker] = clock.read()
        self._pinned = self._pin_now()
        self._own_queue, self._cpu = queued(self._task), _thread_cpu()

    def split(self, ns: int) -> Parts | None:
        if ns >= _LONG_NS:
            self._loader.waited(ns)
        else:
            self._looks.forget()
        clock = self._clock
        if clock is None:
            if self._unknown:
                return _UNKNOWN
            return _ALL_START if self._over else None  # at the end, the loader waits for its workers to exit
        self._loader.owes(0, 0, [])
        if self._exhausted and ns >= _LONG_NS:
            self._loader.add(_EXHAUSTED_AT, ns)
            self._loader.add(_EXHAUSTED_WORKERS_AT, ns * self._exhausted)
        parts = self._split_start(clock, ns) if self._starting else self._split(clock, ns)
        if ns >= _LONG_NS:
            self._tell(parts, ns)
        return as_first(parts) if self._first else parts

    def _split(self, clock: WorkerClock, ns: int) -> Parts:
        if not self._read and ns < _LONG_NS:
            return tuple([(cause, int(ns * share)) for cause, share in self._shares]) + _REST
        begun = _now()
        if self._read and self._task is not None:
            self._task.book_queue(min(max(0, self._task.queue() - self._own_queue), ns))
        if self._read and self._made and ns >= _LONG_NS and faults_of(clock.pid) > self._faults:
            # The worker reads mapped files for the next batch, and holds Python's lock, so it cannot send this one.
            self._made = False
        parts = self._split_made(clock, ns) if self._read and self._made else self._split_making(clock, ns)
        pay(self._budget, ns, self._spent_ns, begun)
        if parts is None:
            return self._gone(ns)
        self._shares = shares(parts, ns)
        return parts

    def _split_made(self, clock: WorkerClock, ns: int) -> Parts:
        """Splits the wait for a batch that was already made."""
        before, after = self._before, clock.read()
        self._last[self._worker] = after
        last = self._comes(after)
        senders, queue, maker_queue = (
            max(0, after - before) for after, before in zip(self._senders(clock), self._sent, strict=True)
        )
        # Not by `cpu_between`: what the kernel says of a thread that runs now lags by up to a tick.
        maker = 0 if before is None or after is None else after.process_cpu - before.process_cpu - senders
        own = self._own_and_pin()
        if last is not None and after is not None and own + senders < ns // _SENDS:
            return (
                split_data_wait(
                    last.times, after, own, part=ns / max(ns, _now() - last.ns), loop_queue_ns=self._loop_queue()
                )
                or _REST
            )
        return split_handoff(ns, own, maker, max(queue, maker_queue), senders)

    def _loop_queue(self) -> int:
        """For how many ns the training thread has queued for a CPU since the wait began."""
        return max(0, queued(self._task) - self._own_queue)

    def _own_and_pin(self) -> int:
        """CPU ns of this process's work on the batch since the wait began."""
        own = _thread_cpu() - self._cpu
        if self._task is not None:
            self._task.booked_ns += own
        return own + self._pin_now() - self._pinned

    def _senders(self, clock: WorkerClock) -> tuple[int, int, int]:
        """The CPU ns of the worker's threads that send batches; for how many ns those who hand the batch over have
        queued for a CPU, and the worker's main thread, whose lock they may need."""
        cpu, queue = clock.helpers()
        return cpu, queued(self._task) + queue, clock.queue()

    def _gone(self, ns: int) -> Parts:
        """The worker's times cannot be read. It has ended well if its part of an IterableDataset is exhausted."""
        if not self._shares or self._workers[self._worker].exitcode != 0:
            self._loader.add(_GONE_AT, ns)
            return _UNKNOWN
        return tuple([(cause, int(ns * share)) for cause, share in self._shares]) + _REST

    def _split_start(self, clock: WorkerClock, ns: int) -> Parts:
        """Splits the wait for the first batch of a new worker."""
        begun = self._start.stop() if self._start is not None else None
        if begun is None:
            self._last[self._worker] = clock.read()
            return _ALL_START  # its first batch took no time, or the wait is interrupted before it takes the request
        self._starting = self._made = self._read = False
        self._start = None
        self._before, self._reads[self._worker] = begun.times, begun.reads
        parts = self._split_making(clock, ns)
        return split_start(begun.ns - (_now() - ns), _UNKNOWN if parts is None else parts)

    def _tell(self, parts: Parts, ns: int) -> None:
        """After a long wait: counts what the worker read, and what was seen of all workers."""
        for at, number in self._looks.take():
            self._loader.add(at, number)
        now = _now()
        if self._made or self._clock is None or now < self._reads_due_ns or blocked_of(parts, ns) < ns // _BLOCKED:
            return
        self._reads_due_ns = now + _READS_EVERY_NS
        before, after = self._reads.get(self._worker), reads_of(self._clock.pid)
        self._reads[self._worker] = after
        if before is not None and after is not None:
            for word, (new, old) in enumerate(zip(after, before, strict=True)):
                self._loader.add(READ_AT + word, max(0, new - old))

    def _split_making(self, clock: WorkerClock, ns: int) -> Parts | None:
        """Splits the wait for a batch that is being made."""
        before, after = self._before, clock.read()
        self._last[self._worker] = after
        last, part = self._comes(after), 1.0
        if last is not None:
            before, part = last.times, ns / max(ns, _now() - last.ns)
        if before is None or after is None:
            return None
        handoff = self._own_and_pin() if self._read else 0
        helpers_queue = 0
        if cpu_between(before, after)[1] > ns // 10:
            queue = clock.helpers_queue()
            helpers_queue = queue - self._helpers_queue.get(self._worker, queue)
            self._helpers_queue[self._worker] = queue
        return split_data_wait(before, after, handoff, helpers_queue, part, self._loop_queue() if self._read else 0)

    def _comes(self, times: CpuTimes | None) -> _Delivered | None:
        """A batch of the worker comes. Returns when an earlier one came, if the worker has been busy since then."""
        if times is None or self._received < 0:
            return None
        last = self._delivered.get(self._worker)
        self._delivered[self._worker] = _Delivered(self._received, _now(), times)
        if last is None or self._first or not self._read:
            return None
        return last if 0 < self._received - last.batches <= len(self._workers) else None

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
