"""Measures how long the loop's own code was blocked, on a rank without an accelerator.

Time outside all hooks is compute or the loop's own Python. But the loop may also sleep, read a file or wait for a
socket there. The kernel's accounting of the training thread shows this: it is time in which the thread was neither on
a CPU nor queued for one, while no other thread of the process computed for it.
"""

from __future__ import annotations

import resource
import time

from ..tasks import TaskClock
from ..threads import OwnThread, OwnThreads
from .budget import Budget

_SPAN_NS = 5_000_000
_SPAN_NS_PER_THREAD = 1_000_000
"""The length of a span between two readings, and what each other thread adds to it. A reading costs 2.5 µs, and 1.5 µs
for each other thread: about a thousandth of the span. If readings are more expensive, the budget makes spans longer."""
_NEGLIGIBLE = 0.01
_WATCHED_SPANS = 64
"""For how many spans other threads are read after the last span in which that made a difference."""

_ASK_POOLS_NS = 10_000_000_000

_thread_cpu = time.thread_time_ns
_process_cpu = time.process_time_ns


def _sleeps() -> int:
    """How often the calling thread has given up its CPU by itself (getrusage(2))."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class BlockedMeter:
    """Measures blocked time. The training thread must create it, and calls it at each step boundary.

        blocked = wall - the training thread's CPU and queue - what other threads may have done for it

    It is 0 if the training thread never gave up its CPU voluntarily.

    All values are over a span of one or more steps. ``wall`` is the time in the loop's own phases only. CPU and queue
    time of the training thread in other phases is subtracted as far as it was measured (TaskClock.booked_ns). The part
    that was not measured makes the result smaller, so that it is a lower bound.

    Other threads count as follows. Threads for collectives do not work for the loop's own code. The same is true of
    threads that the training code has started with ``threading``, such as a thread that decodes samples. Threads of an
    OpenMP pool work at the same time as the training thread, so only their queue time, and CPU time beyond the training
    thread's, can make it wait. All other threads count in full: the training thread may have waited for their work.
    """

    __slots__ = (
        "_ask_pools_ns",
        "_booked",
        "_budget",
        "_cpu",
        "_moved",
        "_others",
        "_process",
        "_queue",
        "_slept",
        "_span_gross",
        "_started",
        "_task",
        "_threads",
        "_watch",
        "compute_ns",
        "due_ns",
        "host_ns",
        "owed",
    )

    def __init__(self, task: TaskClock, threads: OwnThreads):
        self._task = task
        self._threads = threads
        self._started = False
        self._budget = Budget()
        self.host_ns = self.compute_ns = 0
        """The words of both causes after the last boundary. A caller that has left out a call of ``step`` sets them."""
        self.owed = 0
        """Blocked ns that were found and not returned yet."""
        self.due_ns = 0
        """When the next reading is due. Until then ``step`` returns (0, 0), unless something is owed."""
        self._moved = self._span_gross = self._ask_pools_ns = 0
        self._cpu = self._queue = self._booked = self._process = self._slept = 0
        self._watch = _WATCHED_SPANS  # for how many more spans other threads are read
        self._others: list[tuple[OwnThread, int, int]] | None = None  # (thread, CPU, queue) at the start of the span

    def start(self, now_ns: int, host_ns: int, compute_ns: int) -> None:
        """The first step begins; arguments as for ``step``."""
        self._started = True
        self.host_ns, self.compute_ns = host_ns, compute_ns
        self._cpu, self._process, self._queue = _thread_cpu(), _process_cpu(), self._task.queue()
        self._booked, self._slept = self._task.booked_ns, _sleeps()
        self._span_gross = host_ns + compute_ns + self._moved + time.monotonic_ns() - now_ns
        self._begin_span(now_ns)

    def step(self, now_ns: int, host_ns: int, compute_ns: int) -> tuple[int, int]:
        """A step ends. Returns the blocked ns to subtract from (host, compute).

        ``host_ns`` and ``compute_ns`` are cumulative, after the caller has subtracted the earlier results. A result
        never exceeds the host and compute time of the step. The rest is kept for the next steps.
        """
        if not self._started:
            self.start(now_ns, host_ns, compute_ns)
            return 0, 0
        if now_ns >= self.due_ns:
            begun = time.monotonic_ns()
            self.owed += self._blocked(now_ns, host_ns + compute_ns + self._moved)
            ended = time.monotonic_ns()
            self._budget.spend(ended - begun, ended)
            self.due_ns = max(self.due_ns, self._budget.free_ns)
        if not self.owed:
            self.host_ns, self.compute_ns = host_ns, compute_ns
            return 0, 0
        from_host = min(self.owed, max(host_ns - self.host_ns, 0))
        from_compute = min(self.owed - from_host, max(compute_ns - self.compute_ns, 0))
        self.owed -= from_host + from_compute
        self._moved += from_host + from_compute
        self.host_ns, self.compute_ns = host_ns - from_host, compute_ns - from_compute
        return from_host, from_compute

    def _blocked(self, now_ns: int, gross: int) -> int:
        """The blocked ns of the span that ends now. Begins the next span."""
        cpu, process, queue, booked = _thread_cpu(), _process_cpu(), self._task.queue(), self._task.booked_ns
        # When asked for CPU time, the kernel often takes the CPU away. The queue time that is read after that includes
        # time after the boundary. So the span must end here and not at the boundary.
        gross += time.monotonic_ns() - now_ns
        wall = gross - self._span_gross
        own_cpu = cpu - self._cpu
        others_cpu = max(process - self._process - own_cpu, 0)
        elsewhere = booked - self._booked
        slept, self._slept = self._slept, _sleeps()
        gap = wall - max(own_cpu + queue - self._queue - elsewhere, 0) if self._slept != slept else 0
        self._span_gross, self._cpu, self._queue, self._process, self._booked = gross, cpu, queue, process, booked

        doubtful = gap > wall * _NEGLIGIBLE and others_cpu > gap * _NEGLIGIBLE
        if doubtful and now_ns >= self._ask_pools_ns and not self._threads.pools_told():
            self._ask_pools_ns = now_ns + _ASK_POOLS_NS
            self._threads.tell_pools()
        blocked = gap - others_cpu
        if self._others is not None:
            helped_ns, unknown_ns = helped(self._spent(self._others), own_cpu, others_cpu)
            blocked = gap - helped_ns - unknown_ns
            if unknown_ns > gap * _NEGLIGIBLE:
                doubtful, blocked = True, 0
                self._threads.look_soon()
        elif doubtful:
            blocked = 0  # the queue time of other threads is not known
        self._watch = _WATCHED_SPANS if doubtful else self._watch - 1
        self._begin_span(now_ns)
        return max(blocked, 0)

    def _begin_span(self, now_ns: int) -> None:
        self._others = None
        if self._watch > 0:
            self._threads.look(now_ns)
            self._others = self._read()
        self.due_ns = now_ns + _SPAN_NS + _SPAN_NS_PER_THREAD * len(self._others or ())

    def _read(self) -> list[tuple[OwnThread, int, int]]:
        found = []
        for thread in (*self._threads.helpers, *self._threads.communication):
            try:
                found.append((thread, thread.cpu(), thread.queue()))
            except (OSError, ValueError, IndexError):  # it has ended
                self._threads.drop(thread)
        return found

    def _spent(self, before: list[tuple[OwnThread, int, int]]) -> list[tuple[OwnThread, int, int]]:
        spent = []
        for thread, cpu, queue in before:
            try:
                spent.append((thread, max(thread.cpu() - cpu, 0), max(thread.queue() - queue, 0)))
            except (OSError, ValueError, IndexError):  # it has ended; its CPU time is still in that of the process
                self._threads.drop(thread)
        return spent


def helped(spent: list[tuple[OwnThread, int, int]], own_cpu: int, others_cpu: int) -> tuple[int, int]:
    """How long other threads worked while the training thread may have waited for them.

    ``spent``: (thread, CPU, queue). ``others_cpu``: the CPU time of all other threads, including those not in
    ``spent``. Returns (ns that they worked or queued for a CPU, CPU ns of threads not in ``spent``, whose queue time is
    not known).
    """
    unknown, total = others_cpu, 0
    for thread, cpu, queue in spent:
        unknown -= cpu
        if not (thread.communicates or thread.python):
            total += queue + (max(cpu - own_cpu, 0) if thread.pool else cpu)
    return total, max(unknown, 0)
