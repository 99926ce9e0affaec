"""How much CPU another task had, and how long it queued for one: the evidence behind a split wait.

Sources: /proc/<pid>/task/<tid>/schedstat (ns on a CPU, ns runnable without one; kernel documentation, sched-stats,
needs CONFIG_SCHED_INFO), and the CPU-time clock of a whole process (clock_getcpuclockid(3)), which also sees the
worker's helper threads.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from .books import Parts
from .causes import CAUSE

_READ, _CPU, _QUEUE, _HANDOFF = (CAUSE[c] for c in ("data_read", "data_cpu", "data_queue", "data_handoff"))
_WRITE, _SAVE_CPU = CAUSE["checkpoint_write"], CAUSE["checkpoint_cpu"]


class Reading(NamedTuple):
    """ns since the task started."""

    cpu: int
    queue: int
    process_cpu: int


NOTHING_READ = Reading(0, 0, 0)


class TaskClock:
    """One task of one process. Keeps a descriptor: a read of it costs 1 µs, an open 5 µs."""

    __slots__ = ("_clock", "_fd")

    def __init__(self, pid: int, tid: int | None = None):
        self._clock = (~pid << 3) | 2  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED), include/linux/posix-timers.h
        try:
            path = f"/proc/{pid}/task/{pid if tid is None else tid}/schedstat"
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def read(self) -> Reading | None:
        """None when the task is gone or the kernel keeps no such figures."""
        if self._fd < 0:
            return None
        try:
            raw = os.pread(self._fd, 64, 0).split()
            return Reading(int(raw[0]), int(raw[1]), time.clock_gettime_ns(self._clock))
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


def split_data_wait(before: Reading | None, after: Reading | None, handoff_ns: int) -> Parts | None:
    """Splits a wait for a batch by what its worker did meanwhile; ``handoff_ns`` is this process's own work on it.

    What was neither CPU nor queue was blocked: a read. Where the process had more CPU than its main task, helper
    threads worked on the batch, and the process is believed.
    """
    if before is None or after is None:
        return None
    cpu = max(after.cpu - before.cpu, after.process_cpu - before.process_cpu, 0)
    queue = max(after.queue - before.queue, 0)
    return ((_HANDOFF, max(0, handoff_ns)), (_CPU, cpu), (_QUEUE, queue), (_READ, -1))


def split_own_read(cpu_ns: int, queue_ns: int) -> Parts:
    """Splits a batch that this very thread made (``num_workers=0``)."""
    return ((_CPU, max(0, cpu_ns)), (_QUEUE, max(0, queue_ns)), (_READ, -1))


def split_save(cpu_ns: int, queue_ns: int) -> Parts:
    """Splits a save: what was neither CPU nor waiting for one was blocked in the write."""
    return ((_SAVE_CPU, max(0, cpu_ns + queue_ns)), (_WRITE, -1))


class OwnTask:
    """What the calling thread spends from construction on. Its CPU time is exact, not up to a tick late."""

    __slots__ = ("_cpu", "_queue", "_task")

    def __init__(self, task: TaskClock | None):
        self._task = task
        self._queue = queued(task)
        self._cpu = time.thread_time_ns()

    def spent(self) -> tuple[int, int]:
        """-> (ns on a CPU, ns queued for one)."""
        return time.thread_time_ns() - self._cpu, queued(self._task) - self._queue


def queued(task: TaskClock | None) -> int:
    """ns that a task has been runnable without a CPU; 0 where that is not known."""
    reading = task.read() if task is not None else None
    return reading.queue if reading is not None else 0
