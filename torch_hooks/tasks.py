"""How much CPU another task had, and how long it queued for one: the evidence behind a split wait.

Sources: /proc/<pid>/task/<tid>/schedstat (ns on a CPU, ns runnable without one; kernel documentation, sched-stats,
needs CONFIG_SCHED_INFO), and the CPU-time clock of a whole process (clock_getcpuclockid(3)), which also sees the
worker's helper threads.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from ..ledger.causes import CAUSE
from .books import Parts

_READ, _CPU, _QUEUE, _HANDOFF = (CAUSE[c] for c in ("data_read", "data_cpu", "data_queue", "data_handoff"))
_WRITE, _SAVE_CPU = CAUSE["checkpoint_write"], CAUSE["checkpoint_cpu"]


class Reading(NamedTuple):
    """ns since the task started."""

    cpu: int
    queue: int
    process_cpu: int


_HELPERS = 7
"""Threads of a worker besides its main one that are asked, at most."""
_LOOK_AGAIN = 64
_BUSY_QUEUE = 4
"""A helper that works on a batch has at least this part of the time for which it queues on a CPU: 1 in so many."""


class TaskClock:
    """One task of one process. Keeps a descriptor: a read of it costs 1 µs, an open 5 µs."""

    __slots__ = ("_clock", "_fd", "_pid")

    def __init__(self, pid: int, tid: int | None = None):
        self._pid = pid
        self._clock = (~pid << 3) | 2  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED), include/linux/posix-timers.h
        self._fd = _open_schedstat(pid, pid if tid is None else tid)

    def read(self) -> Reading | None:
        """None when the task is gone or the kernel keeps no such figures."""
        try:
            cpu, queue = _read_schedstat(self._fd)
            return Reading(cpu, queue, time.clock_gettime_ns(self._clock))
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class WorkerClock(TaskClock):
    """A data worker: its main task, which makes batches, and the threads that help it or send them off."""

    __slots__ = ("_helpers", "_look_in")

    def __init__(self, pid: int):
        super().__init__(pid)
        self._helpers: dict[int, int] = {}
        self._look_in = 0

    def helpers_queue(self) -> int:
        """ns that the threads beside the main one have been runnable without a CPU: 1 µs and more for each."""
        queue = 0
        for tid in [*self._find_helpers()]:
            try:
                queue += _read_schedstat(self._helpers[tid])[1]
            except (OSError, ValueError, IndexError):  # that thread has ended
                os.close(self._helpers.pop(tid))
        return queue

    def _find_helpers(self) -> dict[int, int]:
        self._look_in -= 1
        if self._look_in <= 0:
            # The thread that sends batches starts with the first of them.
            self._look_in = _LOOK_AGAIN if self._helpers else 4
            try:
                for tid in map(int, os.listdir(f"/proc/{self._pid}/task")):
                    if tid != self._pid and tid not in self._helpers and len(self._helpers) < _HELPERS:
                        fd = _open_schedstat(self._pid, tid)
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


def _open_schedstat(pid: int, tid: int) -> int:
    try:
        return os.open(f"/proc/{pid}/task/{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _read_schedstat(fd: int) -> tuple[int, int]:
    """-> (ns on a CPU, ns runnable without one)."""
    raw = os.pread(fd, 64, 0).split()
    return int(raw[0]), int(raw[1])


def split_data_wait(
    before: Reading | None, after: Reading | None, handoff_ns: int, helpers_queue_ns: int = 0
) -> Parts | None:
    """Splits a wait for a batch by what its worker did meanwhile; ``handoff_ns`` is this process's own work on it.

    What was neither CPU nor queue was blocked: a read. Where the process had more CPU than its main task, helper
    threads worked on the batch, and the process is believed; what they queued for is ``helpers_queue_ns``.
    """
    if before is None or after is None:
        return None
    main, helpers = cpu_between(before, after)
    # Helpers that hardly run are not what the batch waits for: the threads that send batches queue for a CPU too, while
    # the main task reads.
    queue = max(after.queue - before.queue, 0) + min(max(helpers_queue_ns, 0), _BUSY_QUEUE * helpers)
    return ((_HANDOFF, max(0, handoff_ns)), (_CPU, main + helpers), (_QUEUE, queue), (_READ, -1))


def cpu_between(before: Reading, after: Reading) -> tuple[int, int]:
    """-> CPU ns (of the main task, of its helpers)."""
    main = max(after.cpu - before.cpu, 0)
    return main, max(after.process_cpu - before.process_cpu - main, 0)


def split_handoff(queue_ns: int) -> Parts:
    """Splits a wait for a batch that was made when it began: held up where a thread got no CPU, else on its way."""
    return ((_QUEUE, max(0, queue_ns)), (_HANDOFF, -1))


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
