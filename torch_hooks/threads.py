"""The other threads of this process: which exist, what they do, and how much CPU time they have had.

Sources: /proc/self/task/<tid>/{comm,schedstat,syscall} and the CPU-time clock of a thread (clock_getcpuclockid(3)),
which unlike schedstat also counts the tick that a running thread is in.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque

from ..ledger.failures import failure_of
from ..ledger.threads import ENDED, RAISED, Other
from .proc import numbers_in, read_file
from .tasks import open_schedstat, read_schedstat

COMMUNICATION = ("gloo_", "pt_gloo")
"""Name prefixes of the threads that run collectives of a CPU rank: one event loop for each device of a group
(gloo/transport/tcp/loop.cc), and two or more threads that run the group's collectives (ProcessGroupGloo.cpp)."""

_POOLS = ("libgomp",)
"""Libraries with thread pools in which the thread that distributes the work also takes part in it."""

_MOST = 64
"""The most threads whose descriptors are kept open. Other threads count only in the CPU time of the process."""
_SEEN_ENOUGH = 3
_LOOKS_AT_NAME = 4
"""A thread sets its name shortly after it has started. After this many looks the name is not read again."""
_KEPT = 4096
"""How many starts and ends of Python threads are kept until the training thread reads them."""
OURS = "whyidle-"
"""The names of threads that whyidle starts begin with this."""
_NOTICEABLE = 200
"""CPU time is noticeable if it is more than 1/_NOTICEABLE of a wait."""
_PAUSES_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.0, 1.0)
_FIRST_LOOK_NS, _LAST_LOOK_NS = 250_000_000, 16_000_000_000


def thread_clock(tid: int) -> int:
    """The CPU-time clock of a thread of this process: MAKE_THREAD_CPUCLOCK(tid, CPUCLOCK_SCHED) of the kernel's
    include/linux/posix-timers_types.h."""
    return (~tid << 3) | 6


_UNNAMED = re.compile(r"Thread-\d+")
"""The name of its class says more, if that is a subclass of `Thread`."""

_NUMBERED = re.compile(r"Thread-\d+ \((.+)\)|(.*?)-\d+(?:_\d+)?")
"""Names that Python gives to threads: `Thread-7 (save)`, `ThreadPoolExecutor-0_1`. Without the numbers, a new thread
for each save has the same name."""


def named(thread: threading.Thread) -> str:
    """The name of a thread without the numbers that Python gives."""
    name = type(thread).__name__ if _UNNAMED.fullmatch(thread.name) else thread.name
    match = _NUMBERED.fullmatch(name)
    return (((match[1] or match[2]) if match else "") or name)[:64]


class OwnThread:
    """A thread of this process. Keeps a descriptor open, because a read costs 1 µs and an open 5 µs."""

    __slots__ = ("_clock", "_fd", "asleep", "looks", "name", "ours", "pool", "python", "tid")

    def __init__(self, tid: int, python: bool = False):
        self.tid = tid
        self.name = ""
        self.looks = 0  # how often its name was read
        self.pool = False
        """Whether it works only while the training thread does, between the fork and the join of an OpenMP region."""
        self.python = python
        """Whether it was started with ``threading``, by the training code or by whyidle."""
        self.ours = False
        """Whether whyidle started it."""
        self.asleep = 0  # how often it was seen asleep outside a pool's library
        self._clock = thread_clock(tid)
        self._fd = -1

    @property
    def communicates(self) -> bool:
        return self.name.startswith(COMMUNICATION)

    def queue(self) -> int:
        """How many ns it has been runnable without a CPU. Raises OSError if it has ended."""
        if self._fd < 0:
            self._fd = open_schedstat(os.getpid(), self.tid)
        return read_schedstat(self._fd)[1]

    def cpu(self) -> int:
        """How many ns it has been on a CPU. Raises OSError if it has ended."""
        return time.clock_gettime_ns(self._clock)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


class PythonLock:
    """What looks have found out about Python's lock. The watcher writes it (`frames.py`)."""

    __slots__ = ("awaited_ns", "blocked_otherwise", "not_held", "seen_until_ns", "until_ns")

    def __init__(self) -> None:
        self.until_ns = 0
        """Until when (CLOCK_MONOTONIC) another thread that computes is taken to hold it."""
        self.seen_until_ns = 0
        """The same, counted only from looks that found the training thread waiting for the lock."""
        self.blocked_otherwise = 0.0
        """In which share of the time the training thread is blocked on something else meanwhile."""
        self.awaited_ns = 0
        """When the last span of `BlockedMeter` ended (CLOCK_MONOTONIC), if the training thread may have waited for the
        lock for most of it, apart from queues for a CPU; otherwise 0."""
        self.not_held = False
        """Whether no other thread computed between the last two looks. `BlockedMeter` reads it, and clears it."""

    def is_awaited(self, now_ns: int) -> bool:
        """Whether the training thread mostly waits for it, where it is neither on a CPU nor queued for one."""
        return now_ns < self.seen_until_ns and 2 * self.blocked_otherwise < 1


class OwnThreads:
    """The threads of this process, except the training thread, which must call the constructor.

    Threads of ``threading`` tell when they start and end: see `hooks/host.py`. Others are found by a search.
    """

    __slots__ = (
        "_look_after",
        "_look_at",
        "_looked_at",
        "_pool_ranges",
        "_sorter",
        "all",
        "born",
        "communication",
        "ended",
        "fates",
        "gone",
        "helped",
        "helpers",
        "lock",
        "raised",
        "starting",
    )

    def __init__(self) -> None:
        self.lock = PythonLock()
        self.born: deque[tuple[int, str]] = deque(maxlen=_KEPT)
        """The threads of ``threading`` that have started since the last `meet`, with their names. These threads append
        to it."""
        self.ended: deque[tuple[int, int]] = deque(maxlen=_KEPT)
        """The threads of ``threading`` that have ended since the last `bury`, with their CPU ns."""
        self.helped: deque[int] | None = None
        """While a part of a save is open: the CPU ns of the last threads of ``threading`` that the training thread has
        started in it, and that have ended. The loop waits for a thread that a save starts and ends."""
        self.starting: threading.Thread | None = None
        """The one that the training thread starts now, if a part of a save is open."""
        self.gone: deque[tuple[str, int, int]] = deque(maxlen=_MOST)
        """The names, numbers and CPU ns of the last ones that have ended, for the watcher."""
        self.fates: deque[Other] = deque(maxlen=2)
        """The last threads of the training's own code that have ended, without those that `raised` has."""
        self.raised: Other | None = None
        """The last one that an exception has ended which nothing caught."""
        self.all: dict[int, OwnThread] = {}
        self.communication: tuple[OwnThread, ...] = ()
        self.helpers: tuple[OwnThread, ...] = ()
        """All threads except those for communication."""
        self._look_at = self._looked_at = 0
        self._look_after = _FIRST_LOOK_NS
        self._pool_ranges: list[tuple[int, int]] | None = None
        self._sorter: threading.Thread | None = None

    def meet(self) -> list[OwnThread]:
        """The threads of ``threading`` that have started since the last call, as far as they were not known."""
        found = []
        while self.born:
            tid, name = self.born.popleft()
            if tid not in self.all and len(self.all) < _MOST:
                thread = self.all[tid] = OwnThread(tid, python=True)
                thread.ours = name.startswith(OURS)
                found.append(thread)
        if found:
            self._sort()
        return found

    def bury(self) -> dict[int, int]:
        """The threads of ``threading`` that have ended since the last call: tid -> CPU ns that it has had."""
        found = {}
        while self.ended:
            tid, cpu = self.ended.popleft()
            found[tid] = cpu
            if (thread := self.all.get(tid)) is not None:
                self.drop(thread)
        return found

    def fails(self, thread: threading.Thread, failure: str) -> None:
        """An exception ends a thread of ``threading``, which calls this itself. ``failure``: see failure.py."""
        if (known := failure_of(failure)) is not None:
            self.raised = Other(RAISED, known.type, known.place, named(thread))

    def part_begins(self) -> None:
        """A part of a save begins."""
        self.helped = deque(maxlen=_MOST)

    def part_ends(self) -> int:
        """A part of a save ends. Returns the most CPU ns of a thread that it has started, and that has ended. Several
        may have run at the same time, so the loop has waited at least for this one's, and maybe for no more."""
        helped, self.helped = self.helped, None
        return max(helped, default=0) if helped else 0

    def helps(self, thread: threading.Thread) -> deque[int] | None:
        """A thread of ``threading`` begins, and calls this itself. Returns where to add its CPU ns if it ends in the
        part of a save in which the training thread starts it."""
        return self.helped if thread is self.starting else None

    def end(self, thread: threading.Thread, tid: int, cpu_ns: int, own: bool) -> None:
        """A thread of ``threading`` ends, and calls this itself. ``own``: whether it ran the training's own code."""
        if own and (self.raised is None or self.raised.name != named(thread)):
            self.fates.append(Other(ENDED, "", "", named(thread)))
        self.ended.append((tid, cpu_ns))
        self.gone.append((named(thread), tid, cpu_ns))

    def look(self, now_ns: int) -> bool:
        """Finds new and ended threads, if the last search is long enough ago. Returns whether it has searched.

        Process groups and the first parallel operation start threads. These set their names shortly after they have
        started, so after a change the next search comes soon.
        """
        if now_ns < self._look_at:
            return False
        changed = self._find()
        self._looked_at = now_ns
        self._look_after = _FIRST_LOOK_NS if changed else min(2 * self._look_after, _LAST_LOOK_NS)
        self._look_at = now_ns + self._look_after
        return True

    def look_soon(self) -> None:
        """There may be unknown threads, so the next search comes as soon as after a change.

        Not sooner: on busy cores there always seem to be unknown threads, because the clocks are not read at the same
        moment.
        """
        self._look_after = _FIRST_LOOK_NS
        self._look_at = min(self._look_at, self._looked_at + _FIRST_LOOK_NS)

    def drop(self, thread: OwnThread) -> None:
        """Removes a thread that has ended."""
        if self.all.pop(thread.tid, None) is not None:
            thread.close()
            self._sort()

    def tell_pools(self) -> None:
        """Starts a thread that finds out which helpers belong to a pool. It ends when it knows, or after some seconds.

        OpenMP's threads do not set names. But libgomp calls futex(2) directly and not through the C library, so the
        program counter of a sleeping thread is in libgomp. Only another thread can see this: they sleep while the
        training thread is blocked, but mostly still spin at a step boundary, where the training thread could look.
        """
        if self._sorter is None or not self._sorter.is_alive():
            self._sorter = threading.Thread(target=self._watch_sleepers, name="whyidle-threads", daemon=True)
            self._sorter.start()

    def pools_told(self) -> bool:
        """Whether it is known of all helpers if they belong to a pool."""
        return all(thread.pool or thread.python or thread.asleep >= _SEEN_ENOUGH for thread in self.helpers)

    def _watch_sleepers(self) -> None:
        if not self._pool_ranges:
            self._pool_ranges = _ranges_of(_POOLS)
        for pause in _PAUSES_SECONDS:
            time.sleep(pause)
            for thread in self.helpers:
                if not (thread.pool or thread.python) and thread.asleep < _SEEN_ENOUGH:
                    self._watch_sleeper(thread)
            if self.pools_told():
                return

    def _watch_sleeper(self, thread: OwnThread) -> None:
        fields = read_file(f"/proc/self/task/{thread.tid}/syscall", 256).split()
        if len(fields) != 9:  # it is running, or blocked outside a system call
            return
        counter = int(fields[8], 16)
        if any(start <= counter < end for start, end in self._pool_ranges or ()):
            thread.pool = True
        else:
            thread.asleep += 1

    def _find(self) -> bool:
        """Whether threads of libraries have started or ended. Threads of ``threading`` tell that themselves."""
        try:
            tids = set(numbers_in("/proc/self/task"))
        except OSError:
            return False
        tids.discard(threading.get_native_id())
        gone = [thread for tid, thread in self.all.items() if tid not in tids]
        for thread in gone:
            self.all.pop(thread.tid).close()
        new = [OwnThread(tid) for tid in sorted(tids - self.all.keys())[: _MOST - len(self.all)]]
        self.all.update((thread.tid, thread) for thread in new)
        python = _python_threads()
        for thread in self.all.values():
            if thread.tid in python:
                thread.python, thread.ours = True, python[thread.tid].startswith(OURS)
            if not thread.communicates and thread.looks < _LOOKS_AT_NAME:
                thread.looks += 1
                thread.name = read_file(f"/proc/self/task/{thread.tid}/comm", 32).strip()
        self._sort()
        return any(not thread.python for thread in (*gone, *new))

    def _sort(self) -> None:
        self.communication = tuple([thread for thread in self.all.values() if thread.communicates])
        self.helpers = tuple([thread for thread in self.all.values() if not thread.communicates])


class OthersClock:
    """Measures the other threads of this process in a wait of the training thread: the CPU time of those that run
    collectives, and how long the helpers waited for a CPU.

    The former work whenever another rank sends something, so their time is not part of what the training thread does.
    A process may have many threads. So they are measured only in a wait that follows one in which other threads than
    the training thread had noticeable CPU time.
    """

    __slots__ = ("_communication", "_helpers", "_libraries", "_matters", "helped_ns")

    def __init__(self) -> None:
        self._communication: list[tuple[OwnThread, int]] = []
        self._helpers: list[tuple[OwnThread, int]] = []
        self._libraries: list[tuple[OwnThread, int]] = []
        self._matters = False
        self.helped_ns = 0
        """In the last wait: CPU and queue of threads of libraries outside OpenMP's pools, such as those of a tokenizer.
        0 if it was not measured."""

    def begin(self, threads: OwnThreads) -> None:
        """Costs 1 µs for each thread, if it measures."""
        if not self._matters:
            self._communication, self._helpers, self._libraries = [], [], []
            return
        threads.look(time.monotonic_ns())
        self._communication = [(thread, _cpu_of(thread)) for thread in threads.communication]
        self._helpers = [(thread, _queue_of(thread)) for thread in threads.helpers]
        self._libraries = [
            (thread, queue + _cpu_of(thread)) for thread, queue in self._helpers if not (thread.python or thread.pool)
        ]

    def spent(self, ns: int, others_ns: int) -> tuple[int, int]:
        """What was spent since the last `begin`: (CPU ns of the threads that run collectives, ns for which the helpers
        waited for a CPU). Both are 0 if they are not measured.

        ``others_ns``: CPU time of all threads except the training thread, in a wait of ``ns``.
        """
        self._matters = others_ns > ns // _NOTICEABLE
        communication = sum([max(0, _cpu_of(thread) - before) for thread, before in self._communication])
        queue = sum([max(0, _queue_of(thread) - before) for thread, before in self._helpers])
        self.helped_ns = sum(
            [
                max(0, _cpu_of(thread) + _queue_of(thread) - before)
                for thread, before in self._libraries
                if not thread.pool
            ]
        )
        return min(others_ns, communication), queue


def _cpu_of(thread: OwnThread) -> int:
    """How many ns a thread has been on a CPU; 0 if it has ended."""
    try:
        return thread.cpu()
    except OSError:
        return 0


def _queue_of(thread: OwnThread) -> int:
    """How many ns a thread has been runnable without a CPU; 0 if it has ended."""
    try:
        return thread.queue()
    except (OSError, ValueError, IndexError):
        return 0


def _python_threads() -> dict[int | None, str]:
    """Native id -> name of the threads that were started with ``threading``.

    A thread of a library that runs Python code (autograd's, for example) also has an object there, but a dummy one.
    """
    return {
        thread.native_id: thread.name
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread)
    }


def _ranges_of(libraries: tuple[str, ...]) -> list[tuple[int, int]]:
    """The address ranges of the code of these libraries in this process."""
    ranges = []
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                fields = line.split(maxsplit=5)
                if len(fields) == 6 and "x" in fields[1] and os.path.basename(fields[5]).startswith(libraries):
                    start, _, end = fields[0].partition("-")
                    ranges.append((int(start, 16), int(end, 16)))
    except OSError:
        pass
    return ranges
