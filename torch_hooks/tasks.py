"""Reads how much CPU time a task had and how long it queued for a CPU, so that waits can be split.

Sources: /proc/<pid>/task/<tid>/schedstat (ns on a CPU, ns runnable without one; kernel documentation, sched-stats,
needs CONFIG_SCHED_INFO), and the CPU-time clock of a whole process (clock_getcpuclockid(3)), which also sees the
worker's helper threads.
"""

from __future__ import annotations

import os
import threading
import time
from typing import NamedTuple

from .proc import open_file, read, reaped_ns


class CpuTimes(NamedTuple):
    """ns since the task started."""

    cpu: int
    queue: int
    process_cpu: int


_HELPERS = 7
"""The most threads of a worker that are read, besides its main one."""
_LOOK_AGAIN = 64
_PROGRAMS = 8
"""The most programs of a worker, and of one of these, that are read."""
_DEPTH = 3
_LOOK_FOR_PROGRAMS = 8
_THREADS = 8
"""The most threads whose descriptors an AwakeClock keeps open."""


class TaskClock:
    """One task of one process. Keeps a descriptor open, because a read costs 1 µs and an open 5 µs."""

    __slots__ = ("_clock", "_fd", "booked_ns", "booked_queue_ns", "helped_ns", "kept_ns", "kept_queue_ns", "pid")

    def __init__(self, pid: int, tid: int | None = None):
        self.helped_ns = 0
        """For the training thread: CPU and queue of threads of libraries that worked on its batches inside waits for
        data, as far as it was measured. Cumulative."""
        self.booked_ns = 0
        """For the training thread: its CPU and queue time inside bracketed phases (data, collectives, checkpoints), as
        far as it was measured. Cumulative; the meters of those phases add to it."""
        self.booked_queue_ns = 0
        """The part of it in which it queued for a CPU."""
        self.kept_ns = self.kept_queue_ns = 0
        """The time in the phase `host` that keeps what the training thread queued in it, and that queue. Cumulative."""
        self.pid = pid
        self._clock = (~pid << 3) | 2  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED), include/linux/posix-timers.h
        self._fd = open_schedstat(pid, pid if tid is None else tid)

    def book_queue(self, ns: int) -> None:
        """The training thread queued for a CPU for that long, inside a bracketed phase."""
        self.booked_ns += ns
        self.booked_queue_ns += ns

    def keep_queue(self, since_ns: int, ns: int) -> None:
        """What the training thread has queued since ``since_ns`` (as of ``queue``), in ``ns`` of the phase `host`,
        stays there: it is a part of what the loop called."""
        self.kept_ns += ns
        self.kept_queue_ns += max(0, self.queue() - since_ns)

    def read(self) -> CpuTimes | None:
        """The current times; None if the task has ended or the kernel does not provide them."""
        try:
            cpu, queue = read_schedstat(self._fd)
            return CpuTimes(cpu, queue, time.clock_gettime_ns(self._clock))
        except (OSError, ValueError, IndexError):
            return None

    def queue(self) -> int:
        """How many ns it has been runnable without a CPU; 0 if that is not known."""
        return self.known_queue() or 0

    def known_queue(self) -> int | None:
        """The same; None if that is not known."""
        try:
            return read_schedstat(self._fd)[1]
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class AwakeClock:
    """How long the calling thread has been awake since it started: on a CPU, or runnable without one."""

    __slots__ = ("_clocks",)

    def __init__(self) -> None:
        self._clocks: dict[int, TaskClock] = {}

    def __call__(self) -> int:
        """ns; without the time in the queue if the kernel does not provide that."""
        thread = threading.get_ident()
        clock = self._clocks.get(thread)
        if clock is None:
            if len(self._clocks) >= _THREADS:
                self._clocks.clear()
            clock = self._clocks[thread] = TaskClock(os.getpid(), threading.get_native_id())
        return clock.queue() + time.thread_time_ns()


class WorkerClock(TaskClock):
    """A data worker: its main task, which makes batches, the threads that help it or send the batches, and the
    programs that it runs: a decoder, or a `pipe:` of WebDataset."""

    __slots__ = ("_helpers", "_look_in", "_programs")

    def __init__(self, pid: int):
        super().__init__(pid)
        self._helpers: dict[int, int] = {}
        self._look_in = 0
        self._programs = Programs(pid)

    def read(self) -> CpuTimes | None:
        """Like that of a task. The CPU time of the process includes that of its programs."""
        times = super().read()
        return times and times._replace(process_cpu=times.process_cpu + self._programs.cpu())

    def helpers_queue(self) -> int:
        """How many ns the threads except the main one, and the programs, have been runnable without a CPU. Costs at
        least 1 µs for each thread."""
        return self.helpers()[1]

    def helpers(self) -> tuple[int, int]:
        """The CPU ns of the threads except the main one, and how many ns they and the programs have been runnable
        without a CPU. Costs as much."""
        cpu, queue = 0, self._programs.queue
        for tid in [*self._find_helpers()]:
            try:
                had, queued = read_schedstat(self._helpers[tid])
            except (OSError, ValueError, IndexError):  # that thread has ended
                os.close(self._helpers.pop(tid))
            else:
                cpu, queue = cpu + had, queue + queued
        return cpu, queue

    def _find_helpers(self) -> dict[int, int]:
        self._look_in -= 1
        if self._look_in <= 0:
            # The thread that sends batches starts with the first batch.
            self._look_in = _LOOK_AGAIN if self._helpers else 4
            try:
                for tid in map(int, os.listdir(f"/proc/{self.pid}/task")):
                    if tid != self.pid and tid not in self._helpers and len(self._helpers) < _HELPERS:
                        fd = open_schedstat(self.pid, tid)
                        if fd >= 0:
                            self._helpers[tid] = fd
            except OSError:
                pass
        return self._helpers

    def close(self) -> None:
        super().close()
        for fd in self._helpers.values():
            os.close(fd)
        self._helpers.clear()
        self._programs.close()


class Programs:
    """The processes that a task has started, and those that they have started."""

    __slots__ = ("_fd", "_has", "_look_in", "_pid", "queue")

    def __init__(self, pid: int):
        self._pid = pid
        self._fd = _open(pid, "children")  # needs CONFIG_PROC_CHILDREN
        self._has = False
        self._look_in = 0
        self.queue = 0
        """How many ns the main threads of those that run have been runnable without a CPU, as of the last call."""

    def cpu(self) -> int:
        """The CPU ns of those that run and of those that have ended; 0 if that is not known.

        Almost no data worker starts programs. Without any this costs 1 µs, and now and then a look at those that have
        ended, because a short program may run only between two calls.
        """
        self.queue = 0
        try:
            running = _children(self._fd)
            self._look_in -= 1
            if running:
                self._has = True
            elif not self._has and self._look_in > 0:
                return 0
            self._look_in = _LOOK_FOR_PROGRAMS
            ended = reaped_ns(self._pid)
            self._has = self._has or ended > 0
            return ended + self._all_of(running, _DEPTH)
        except (OSError, ValueError, IndexError):
            return 0

    def _all_of(self, pids: list[int], depth: int) -> int:
        """The CPU ns of these processes, and of those that they have started, such as those of a shell's pipe."""
        total = 0
        for pid in pids[:_PROGRAMS]:
            try:
                total += time.clock_gettime_ns((~pid << 3) | 2) + reaped_ns(pid)
                fd = open_schedstat(pid, pid)
                try:
                    self.queue += read_schedstat(fd)[1]
                finally:
                    os.close(fd)
                fd = _open(pid, "children")
                try:
                    started = _children(fd)
                finally:
                    os.close(fd)
                if depth:
                    total += self._all_of(started, depth - 1)
            except (OSError, ValueError, IndexError):  # it has ended meanwhile
                continue
        return total

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _children(fd: int) -> list[int]:
    return [int(pid) for pid in os.pread(fd, 4096, 0).split()]


def _open(pid: int, name: str) -> int:
    try:
        return os.open(f"/proc/{pid}/task/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def open_schedstat(pid: int, tid: int) -> int:
    return open_file(f"/proc/{pid}/task/{tid}/schedstat")


def read_schedstat(fd: int) -> tuple[int, int]:
    """Reads (ns on a CPU, ns runnable without a CPU)."""
    raw = read(fd, 64).split()
    return int(raw[0]), int(raw[1])


class OwnTask:
    """Measures the calling thread from construction on. Its CPU time is exact, while schedstat lags by up to a tick."""

    __slots__ = ("_cpu", "_queue", "_task")

    def __init__(self, task: TaskClock | None):
        self._task = task
        self._queue = queued(task)
        self._cpu = time.thread_time_ns()

    def spent(self) -> tuple[int, int]:
        """Ends the measurement: (ns on a CPU, ns queued for one)."""
        # The queue is read first: asking for CPU time may make the kernel take the CPU away, which adds to the queue.
        queue = queued(self._task) - self._queue
        cpu = time.thread_time_ns() - self._cpu
        if self._task is not None:
            self._task.booked_ns += cpu + queue
            self._task.booked_queue_ns += queue
        return cpu, queue


def queued(task: TaskClock | None) -> int:
    """How many ns a task has been runnable without a CPU; 0 if that is not known."""
    return task.queue() if task is not None else 0
