"""The other threads of this process: which exist, what they do, and how much CPU time they have had.

Sources: /proc/self/task/<tid>/{comm,schedstat,syscall} and the CPU-time clock of a thread (clock_getcpuclockid(3)),
which unlike schedstat also counts the tick that a running thread is in.
"""

from __future__ import annotations

import os
import threading
import time

from .tasks import open_schedstat, read_schedstat

COMMUNICATION = ("gloo_", "pt_gloo")
"""Name prefixes of the threads that run collectives of a CPU rank: one event loop for each device of a group
(gloo/transport/tcp/loop.cc), and two or more threads that run the group's collectives (ProcessGroupGloo.cpp)."""

_POOLS = ("libgomp",)
"""Libraries with thread pools in which the thread that distributes the work also takes part in it."""

_MOST = 64
"""The most threads whose descriptors are kept open. Other threads count only in the CPU time of the process."""
_SEEN_ENOUGH = 3
_NOTICEABLE = 200
"""CPU time is noticeable if it is more than 1/_NOTICEABLE of a wait."""
_PAUSES_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.0, 1.0)
_FIRST_LOOK_NS, _LAST_LOOK_NS = 250_000_000, 16_000_000_000


class OwnThread:
    """A thread of this process. Keeps a descriptor open, because a read costs 1 µs and an open 5 µs."""

    __slots__ = ("_clock", "_fd", "asleep", "name", "pool", "python", "tid")

    def __init__(self, tid: int):
        self.tid = tid
        self.name = ""
        self.pool = False
        """Whether it works only while the training thread does, between the fork and the join of an OpenMP region."""
        self.python = False
        """Whether the training code started it with ``threading``."""
        self.asleep = 0  # how often it was seen asleep outside a pool's library
        self._clock = (~tid << 3) | 6  # MAKE_THREAD_CPUCLOCK(tid, CPUCLOCK_SCHED), include/linux/posix-timers_types.h
        self._fd = open_schedstat(os.getpid(), tid)

    @property
    def communicates(self) -> bool:
        return self.name.startswith(COMMUNICATION)

    def queue(self) -> int:
        """How many ns it has been runnable without a CPU. Raises OSError if it has ended."""
        return read_schedstat(self._fd)[1]

    def cpu(self) -> int:
        """How many ns it has been on a CPU. Raises OSError if it has ended."""
        return time.clock_gettime_ns(self._clock)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


class OwnThreads:
    """The threads of this process, except the training thread, which must call the constructor."""

    __slots__ = ("_look_after", "_look_at", "_looked_at", "_pool_ranges", "_sorter", "all", "communication", "helpers")

    def __init__(self) -> None:
        self.all: dict[int, OwnThread] = {}
        self.communication: tuple[OwnThread, ...] = ()
        self.helpers: tuple[OwnThread, ...] = ()
        """All threads except those for communication."""
        self._look_at = self._looked_at = 0
        self._look_after = _FIRST_LOOK_NS
        self._pool_ranges: list[tuple[int, int]] | None = None
        self._sorter: threading.Thread | None = None

    def look(self, now_ns: int) -> None:
        """Finds new and ended threads, if the last search is long enough ago.

        Process groups and the first parallel operation start threads. These set their names shortly after they have
        started, so after a change the next search comes soon.
        """
        if now_ns < self._look_at:
            return
        changed = self._find()
        self._looked_at = now_ns
        self._look_after = _FIRST_LOOK_NS if changed else min(2 * self._look_after, _LAST_LOOK_NS)
        self._look_at = now_ns + self._look_after

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
        fields = _line(thread.tid, "syscall").split()
        if len(fields) != 9:  # it is running, or blocked outside a system call
            return
        counter = int(fields[8], 16)
        if any(start <= counter < end for start, end in self._pool_ranges or ()):
            thread.pool = True
        else:
            thread.asleep += 1

    def _find(self) -> bool:
        try:
            tids = set(map(int, os.listdir("/proc/self/task")))
        except OSError:
            return False
        tids.discard(threading.get_native_id())
        gone = [thread for tid, thread in self.all.items() if tid not in tids]
        for thread in gone:
            self.all.pop(thread.tid).close()
        new = sorted(tids - self.all.keys())[: _MOST - len(self.all)]
        for tid in new:
            self.all[tid] = OwnThread(tid)
        python = _python_threads()
        for thread in self.all.values():
            thread.python = thread.tid in python
            if not thread.communicates:
                thread.name = _line(thread.tid, "comm")
        self._sort()
        return bool(gone or new)

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

    __slots__ = ("_communication", "_helpers", "_matters")

    def __init__(self) -> None:
        self._communication: list[tuple[OwnThread, int]] = []
        self._helpers: list[tuple[OwnThread, int]] = []
        self._matters = False

    def begin(self, threads: OwnThreads) -> None:
        """Costs 1 µs for each thread, if it measures."""
        if not self._matters:
            self._communication, self._helpers = [], []
            return
        threads.look(time.monotonic_ns())
        self._communication = [(thread, _cpu_of(thread)) for thread in threads.communication]
        self._helpers = [(thread, _queue_of(thread)) for thread in threads.helpers]

    def spent(self, ns: int, others_ns: int) -> tuple[int, int]:
        """What was spent since the last `begin`: (CPU ns of the threads that run collectives, ns for which the helpers
        waited for a CPU). Both are 0 if they are not measured.

        ``others_ns``: CPU time of all threads except the training thread, in a wait of ``ns``.
        """
        self._matters = others_ns > ns // _NOTICEABLE
        communication = sum([max(0, _cpu_of(thread) - before) for thread, before in self._communication])
        queue = sum([max(0, _queue_of(thread) - before) for thread, before in self._helpers])
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


def _line(tid: int, file: str) -> str:
    """The content of a one-line file of a thread; empty if it cannot be read."""
    try:
        with open(f"/proc/self/task/{tid}/{file}", "rb") as stream:
            return stream.read().decode(errors="replace").strip()
    except OSError:
        return ""


def _python_threads() -> set[int | None]:
    """The native ids of the threads that were started with ``threading``.

    A thread of a library that runs Python code (autograd's, for example) also has an object there, but a dummy one.
    """
    return {thread.native_id for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}


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
