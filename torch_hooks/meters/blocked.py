"""Measures how long the loop's own code was blocked, or got no CPU, on a rank without an accelerator.

Time outside all hooks is compute or the loop's own Python. But the loop may also sleep, read a file or wait for a
socket there. The kernel's accounting of the training thread shows this: it is time in which the thread was neither on
a CPU nor queued for one, while no other thread of the process computed for it.
"""

from __future__ import annotations

import resource
import time

from ..handlers import pass_on
from ..tasks import TaskClock
from ..threads import OwnThread, OwnThreads
from .budget import Budget

_SPAN_NS = 5_000_000
_SPAN_NS_PER_THREAD = 1_000_000
"""The length of a span between two readings, and what each other thread adds to it. A reading costs 2.5 µs, and 1.5 µs
for each other thread: about a thousandth of the span. If readings are more expensive, the budget makes spans longer."""
_NEGLIGIBLE = 0.01
_QUEUED = 0.01
"""Where the training thread queued for less than this share of a span, the queue stays compute: each thread waits now
and then until the kernel has done something else."""
_WATCHED_SPANS = 64
"""For how many spans other threads are read after the last span in which that made a difference."""

_ASK_POOLS_NS = 10_000_000_000

_thread_cpu = time.thread_time_ns
_process_cpu = time.process_time_ns


def _sleeps() -> int:
    """How often the calling thread has given up its CPU by itself (getrusage(2))."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class BlockedMeter:
    """Measures blocked and queued time. The training thread must create it, and calls it at each step boundary.

        blocked = wall - the training thread's CPU and queue - what other threads may have done for it
        queued = the training thread's queue, but at most wall - its CPU

    Blocked time is 0 if the training thread never gave up its CPU voluntarily.

    All values are over a span of one or more steps. ``wall`` is the time in the loop's own phases only. CPU and queue
    time of the training thread in other phases is subtracted as far as it was measured (TaskClock.booked_ns). The part
    that was not measured makes the result smaller, so that it is a lower bound.

    Other threads count as follows. Threads for collectives do not work for the loop's own code. The same is true of
    threads that the training code has started with ``threading``, such as a thread that decodes samples, also if they
    start or end in the span. Threads of an OpenMP pool work at the same time as the training thread, so only their
    queue time, and CPU time beyond the training thread's, can make it wait. All other threads count in full: the
    training thread may have waited for their work. Those of a library that end in the span count twice, because their
    queue time is not known. What threads of a library, such as a tokenizer, did in waits for data does not count: the
    training thread waited for it there.

    ``awake_ns`` says how long the training thread had a CPU in these phases. So a reader sees whether time that counts
    as compute may have been spent in another thread.
    """

    __slots__ = (
        "_ask_pools_ns",
        "_booked",
        "_booked_queue",
        "_budget",
        "_cpu",
        "_from_host",
        "_helped",
        "_kept",
        "_kept_queue",
        "_likely",
        "_moved",
        "_others",
        "_owed_host",
        "_owed_queue",
        "_pace",
        "_process",
        "_queue",
        "_slept",
        "_span_aside",
        "_span_gross",
        "_span_host",
        "_started",
        "_task",
        "_threads",
        "_unlooked",
        "_watch",
        "aside_ns",
        "awake_ns",
        "compute_ns",
        "due_ns",
        "host_ns",
        "idle_ns",
        "lock_ns",
        "owed",
    )

    def __init__(self, task: TaskClock, threads: OwnThreads):
        self._task = task
        self._threads = threads
        self._started = False
        self._budget = Budget()
        self.host_ns = self.compute_ns = self.aside_ns = 0
        """The words of these causes after the last boundary. A caller that leaves out a call of ``step`` sets them."""
        self.owed = 0
        """Blocked and queued ns that were found and not returned yet."""
        self.due_ns = 0
        """When the next reading is due. Until then ``step`` returns zeros, unless something is owed."""
        self.idle_ns: int | None = None
        """For how long the training thread was neither on a CPU nor queued for one in the work of the last span. The
        caller of ``step`` may take it, and set it to None."""
        self.awake_ns = 0
        """For how long the training thread had a CPU in the loop's own phases. Cumulative. It includes queues that are
        too short to count."""
        self.lock_ns = 0
        """The part of the blocked time in which other Python threads computed while Python's lock was awaited."""
        self._moved = self._span_aside = self._span_gross = self._ask_pools_ns = 0
        self._unlooked = 0, 0, 0  # blocked ns, wall ns of their spans, and what Python threads computed meanwhile
        self._likely = 0, 0, 0  # the same in spans that a Python thread has spent in computing
        self._pace = 0, 1  # what was owed after the last reading, and the wall time of its span
        self._owed_host = 0  # the part of `owed` that is of the loop's own Python
        self._owed_queue = 0  # the part of `owed` in which it queued for a CPU
        self._from_host = self._span_host = 0  # host ns that were returned; host ns when the span began, with those
        self._cpu = self._queue = self._booked = self._booked_queue = self._helped = self._process = self._slept = 0
        self._kept = self._kept_queue = 0  # those of the training thread when the span began
        self._watch = _WATCHED_SPANS  # for how many more spans other threads are read
        self._others: list[tuple[OwnThread, int, int]] | None = None  # (thread, CPU, queue) at the start of the span

    def start(self, now_ns: int, host_ns: int, compute_ns: int, aside_ns: int = 0) -> None:
        """The first step begins; arguments as for ``step``."""
        self._started = True
        self.aside_ns = self._span_aside = aside_ns
        self.host_ns, self.compute_ns = host_ns, compute_ns
        self._span_host = host_ns + self._from_host
        self._begin_span(now_ns, host_ns + compute_ns + self._moved - now_ns)

    def step(self, now_ns: int, host_ns: int, compute_ns: int, aside_ns: int = 0) -> tuple[int, int, int]:
        """A step ends. Returns the ns to subtract from (host, compute), and in how much of both it queued for a CPU. It
        was blocked in the rest.

        ``host_ns`` and ``compute_ns`` are cumulative, after the caller has subtracted the earlier results. A result
        never exceeds the host and compute time of the step. The rest is kept for the next steps. ``aside_ns``: the part
        of compute in evaluations and rollouts. They keep what they queued, as they have it by the program's own clock.
        """
        if not self._started:
            self.start(now_ns, host_ns, compute_ns, aside_ns)
            return 0, 0, 0
        if now_ns >= self.due_ns:
            begun = time.monotonic_ns()
            gross, hosted = host_ns + compute_ns + self._moved, host_ns + self._from_host
            wall = max(gross - self._span_gross, 1)
            host = min(max(hosted - self._span_host, 0), wall)  # the wall begins only after the reading
            kept = min(self._task.kept_ns - self._kept, host)
            blocked, queued = self._lost(now_ns, gross)
            queued -= queued * min(max(aside_ns - self._span_aside, 0), wall) // wall
            self._span_aside = aside_ns
            # A span may have several steps. The host time of all of them comes before the compute time of any. A thread
            # may queue for a CPU anywhere.
            self._owed_host += min(blocked + queued * (host - kept) // max(wall - kept, 1), host)
            self.idle_ns = (self.idle_ns or 0) - min(blocked, host)
            self._span_host = hosted
            self.owed += blocked + queued
            self._owed_queue += queued
            self._pace = self.owed, wall
            ended = time.monotonic_ns()
            self._budget.spend(ended - begun, ended)
            self.due_ns = max(self.due_ns, self._budget.free_ns)
        worked, aside = max(compute_ns - self.compute_ns, 0), max(aside_ns - self.aside_ns, 0)
        self.aside_ns = aside_ns
        if not self.owed:
            self.host_ns, self.compute_ns = host_ns, compute_ns
            return 0, 0, 0
        from_host = min(self._owed_host, max(host_ns - self.host_ns, 0))
        owed = self.owed - self._owed_host
        blocked = owed - owed * self._owed_queue // self.owed
        # A span may be longer than a step. So that each step gets its part, the one that ends a span does not get all.
        due, wall = self._pace
        most = max(0, -(-due * (worked + max(host_ns - self.host_ns, 0)) // wall) - from_host)
        if due < wall * _NEGLIGIBLE or 2 * aside > wall:
            most = worked  # what is left costs a call in each step, and what a rollout has lost is not of later ones
        from_compute = min(owed, worked, blocked + max(worked - aside, 0), most)
        queue = (from_host + from_compute) * self._owed_queue // self.owed
        self.owed -= from_host + from_compute
        self._owed_host -= from_host
        self._owed_queue -= queue
        self._moved += from_host + from_compute
        self._from_host += from_host
        self.host_ns, self.compute_ns = host_ns - from_host, compute_ns - from_compute
        return from_host, from_compute, queue

    def _lost(self, now_ns: int, gross: int) -> tuple[int, int]:
        """The (blocked, queued) ns of the span that ends now. Begins the next span."""
        cpu, process, queue, booked = _thread_cpu(), _process_cpu(), self._task.queue(), self._task.booked_ns
        # When asked for CPU time, the kernel often takes the CPU away. The queue time that is read after that includes
        # time after the boundary. So the span must end here and not at the boundary.
        wall = gross + time.monotonic_ns() - now_ns - self._span_gross
        own_cpu = cpu - self._cpu
        others_cpu = max(process - self._process - own_cpu, 0)
        awake = max(own_cpu + queue - self._queue - (booked - self._booked), 0)
        booked_queue = self._task.booked_queue_ns - self._booked_queue
        kept_queue = self._task.kept_queue_ns - self._kept_queue
        own_queue = queue - self._queue - booked_queue - kept_queue
        queued = max(0, min(own_queue, wall - own_cpu + booked - self._booked - booked_queue, wall))
        queued = queued if queued >= _QUEUED * wall else 0
        self.awake_ns += max(min(awake, wall) - queued - kept_queue, 0)
        self.idle_ns = max(wall - awake, 0)
        gap = wall - awake if _sleeps() != self._slept else 0
        doubtful = gap > wall * _NEGLIGIBLE and others_cpu > gap * _NEGLIGIBLE
        if doubtful and now_ns >= self._ask_pools_ns and not self._threads.pools_told():
            self._ask_pools_ns = now_ns + _ASK_POOLS_NS
            self._threads.tell_pools()
        spent = self._spent(self._others or [])
        helped_ns, unknown_ns = helped(spent, own_cpu, others_cpu)
        helped_ns = max(0, helped_ns - (self._task.helped_ns - self._helped))
        blocked = max(gap - helped_ns - 2 * unknown_ns, 0)
        if unknown_ns > gap * _NEGLIGIBLE:
            doubtful = True
            self._threads.look_soon()
        lock = self._threads.lock
        computed = min(blocked, _computed_in_python(spent)) if blocked else 0
        lock.awaited_ns = now_ns if 2 * blocked >= wall - queued and 2 * computed >= blocked > 0 else 0
        if blocked:
            had, likely = self._likely if lock.not_held else self._unlooked, self._likely
            lock.not_held = False
            self._unlooked = had[0] + blocked, had[1] + wall, had[2] + computed
            if lock.awaited_ns:
                self._likely = likely[0] + blocked, likely[1] + wall, likely[2] + computed
        if now_ns < lock.until_ns:
            # Looks are seconds apart. The one that found the lock contended also stands for the time before it.
            blocked_ns, wall_ns, computed_ns = self._unlooked
            self.lock_ns += min(max(0, blocked_ns - round(lock.blocked_otherwise * wall_ns)), computed_ns)
            self._unlooked = self._likely = 0, 0, 0
        self._watch = _WATCHED_SPANS if doubtful else self._watch - 1
        self._begin_span(now_ns, gross - now_ns)
        return blocked, queued

    def _begin_span(self, now_ns: int, since: int) -> None:
        """``since``: the wall time of the loop's own phases, minus the moment at which it had this value."""
        self._others = None
        if self._watch > 0:
            self._threads.look(now_ns)
            self._threads.meet()
            self._others = self._read()
        # After the search for threads, which takes long where another thread holds Python's lock: the CPU times of the
        # threads must be of the same moment as that of the process.
        self._cpu, self._process, self._queue = _thread_cpu(), _process_cpu(), self._task.queue()
        self._booked, self._booked_queue = self._task.booked_ns, self._task.booked_queue_ns
        self._helped, self._kept, self._slept = self._task.helped_ns, self._task.kept_ns, _sleeps()
        self._kept_queue = self._task.kept_queue_ns
        self._span_gross = since + time.monotonic_ns()
        self.due_ns = now_ns + _SPAN_NS + _SPAN_NS_PER_THREAD * len(self._others or ())

    def _read(self) -> list[tuple[OwnThread, int, int]]:
        self._threads.bury()  # their CPU time is in the span that has just ended
        found = []
        for thread in (*self._threads.helpers, *self._threads.communication):
            try:
                found.append((thread, thread.cpu(), thread.queue() if _may_help(thread) else 0))
            except (OSError, ValueError, IndexError) as error:  # it has ended
                pass_on(error)
                self._threads.drop(thread)
        return found

    def _spent(self, before: list[tuple[OwnThread, int, int]]) -> list[tuple[OwnThread, int, int]]:
        """(thread, CPU, queue) in the span, also of Python threads that have started or ended in it."""
        spent: list[tuple[OwnThread, int, int]] = []
        seen = {
            thread.tid for thread, *_ in before
        } | self._threads.all.keys()  # their CPU time is not all of this span
        new = [(thread, 0, 0) for thread in self._threads.meet()]
        seen.update(thread.tid for thread, *_ in new)
        ended = self._threads.bury()
        for thread, cpu, queue in (*before, *new):
            if thread.tid in ended:
                spent.append((thread, max(ended[thread.tid] - cpu, 0), 0))
                continue
            try:
                queued = max(thread.queue() - queue, 0) if _may_help(thread) else 0
                spent.append((thread, max(thread.cpu() - cpu, 0), queued))
            except (OSError, ValueError, IndexError) as error:  # it has ended; its CPU time is in that of the process
                pass_on(error)
                self._threads.drop(thread)
        return spent + [(OwnThread(tid, python=True), cpu, 0) for tid, cpu in ended.items() if tid not in seen]


def _may_help(thread: OwnThread) -> bool:
    return not (thread.communicates or thread.python)


def _computed_in_python(spent: list[tuple[OwnThread, int, int]]) -> int:
    """The CPU ns of threads of ``threading``, except whyidle's own."""
    return sum([cpu for thread, cpu, _ in spent if thread.python and not thread.ours])


def helped(spent: list[tuple[OwnThread, int, int]], own_cpu: int, others_cpu: int) -> tuple[int, int]:
    """How long other threads worked while the training thread may have waited for them.

    ``spent``: (thread, CPU, queue). ``others_cpu``: the CPU time of all other threads, including those not in
    ``spent``. Returns (ns that they worked or queued for a CPU, CPU ns of threads not in ``spent``, whose queue time is
    not known).
    """
    unknown, total = others_cpu, 0
    for thread, cpu, queue in spent:
        unknown -= cpu
        if _may_help(thread):
            total += queue + (max(cpu - own_cpu, 0) if thread.pool else cpu)
    return total, max(unknown, 0)
