"""Splits a wait among causes, from readings before and after it. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from ..ledger.causes import CAUSE
from .books import FIRST, Parts
from .tasks import CpuTimes

_READ, _CPU, _QUEUE, _HANDOFF = (CAUSE[c] for c in ("data_read", "data_cpu", "data_queue", "data_handoff"))
_START = CAUSE["data_start"]
_WRITE, _SAVE_CPU = CAUSE["checkpoint_write"], CAUSE["checkpoint_cpu"]

_IDLE = 20
"""A process with less than 1/_IDLE of a wait on a CPU or in a queue for one was idle or blocked."""
_LONG_NS = 1_000_000_000
"""Who hands over a batch is not without a CPU for this long."""
_BUSY_QUEUE = 4
"""A helper thread that works on a batch is on a CPU for at least 1/_BUSY_QUEUE of the time for which it queues."""


def split_data_wait(
    before: CpuTimes | None,
    after: CpuTimes | None,
    handoff_ns: int,
    helpers_queue_ns: int = 0,
    part: float = 1.0,
    loop_queue_ns: int = 0,
) -> Parts | None:
    """Splits a wait for a batch by what its worker did in the meantime. ``handoff_ns``: this process's work on it.
    ``part``: the wait as a part of the time between the two readings, for all of which the worker made batches.

    Time in which the worker was neither on a CPU nor queued for one was a read. If the worker process had more CPU time
    than its main task, helper threads worked on the batch, and the CPU time of the process counts.
    ``helpers_queue_ns``: how long these threads queued for a CPU. ``loop_queue_ns``: the same of the training thread.
    It was not waiting for a read then: the batch had come.
    """
    if before is None or after is None:
        return None
    main, helpers = cpu_between(before, after)
    queue = max(after.queue - before.queue, 0) + delay(helpers, helpers_queue_ns)
    cpu, queue = round(part * (main + helpers)), round(part * queue) + max(0, loop_queue_ns)
    return ((_HANDOFF, max(0, handoff_ns)), (_CPU, cpu), (_QUEUE, queue), (_READ, -1))


def delay(cpu_ns: int, queue_ns: int) -> int:
    """For how many ns of ``queue_ns``, in which helper threads queued for a CPU, a batch waited for them.

    Helpers that hardly run do not delay the batch: threads that send batches also queue for a CPU while the main task
    reads.
    """
    return min(max(queue_ns, 0), _BUSY_QUEUE * max(cpu_ns, 0))


def cpu_between(before: CpuTimes, after: CpuTimes) -> tuple[int, int]:
    """CPU ns between two readings: (of the main task, of its helpers)."""
    main = max(after.cpu - before.cpu, 0)
    return main, max(after.process_cpu - before.process_cpu - main, 0)


def as_first(parts: Parts) -> Parts:
    """Marks the wait as a first one after `__iter__`, except the start of the worker."""
    return tuple([(cause if cause == _START else cause + FIRST, ns) for cause, ns in parts])


def split_start(start_ns: int, rest: Parts) -> Parts:
    """Splits a wait for a batch in which the worker first had to start, for ``start_ns``."""
    return ((_START, max(0, start_ns)), *rest)


def blocked_of(parts: Parts, ns: int) -> int:
    """How many of ``ns`` were blocked."""
    last = parts[-1][0] % FIRST
    return max(0, ns - sum(part for _, part in parts[:-1])) if last == _READ else 0


def split_handoff(ns: int, own_ns: int, maker_ns: int, queue_ns: int, senders_ns: int) -> Parts:
    """Splits a wait of ``ns`` for a batch that was already made when the wait began.

    ``own_ns``: this process's work on it. ``maker_ns``: CPU time of the worker's main thread, which makes the next
    batch. It holds Python's lock, so the thread that sends this one is blocked; and if it was not busy all the time,
    batches would be here before the loop asks for them. ``queue_ns``: of those who hand the batch over, or of the main
    thread, which may hold the lock without a CPU. ``senders_ns``: CPU time of the threads that send. If nobody does
    anything for long, the worker is blocked: it holds the lock in a call, or is stopped.
    """
    own, maker, queue = max(0, own_ns), max(0, maker_ns), max(0, queue_ns)
    blocked = ns >= _LONG_NS and own + maker + queue + senders_ns < ns // _IDLE
    return ((_HANDOFF, own), (_CPU, maker), (_QUEUE, queue), (_READ if blocked else _HANDOFF, -1))


def split_source(
    ns: int,
    own_cpu_ns: int,
    others_cpu_ns: int,
    queue_ns: int,
    helpers_queue_ns: int,
    processes: Sequence[tuple[int, int]],
    *,
    receives: bool,
) -> Parts:
    """Splits a wait of ``ns`` for a batch that this process or others make for its training thread.

    ``own_cpu_ns``, ``queue_ns``: of the training thread; ``others_cpu_ns``, ``helpers_queue_ns``: of all other threads.
    ``receives``: the training thread makes nothing itself. ``processes``: (CPU ns, queue ns) of the processes that may
    have made the batch. Those that did nothing are left out, because they may wait for work. The others count with
    their mean, because it is not known which of them made it.
    """
    active = [(cpu, queue) for cpu, queue in processes if cpu + queue > ns // _IDLE]
    cpu = max(0, others_cpu_ns)
    queue = max(0, queue_ns) + delay(cpu, helpers_queue_ns)
    if active:
        cpu += sum(cpu for cpu, _ in active) // len(active)
        queue += sum(queue for _, queue in active) // len(active)
    own = max(0, own_cpu_ns)
    if receives:
        return ((_HANDOFF, own), (_CPU, cpu), (_QUEUE, queue), (_READ, -1))
    return ((_CPU, own + cpu), (_QUEUE, queue), (_READ, -1))


def split_save(ns: int, cpu_ns: int, queue_ns: int, helped_ns: int) -> Parts:
    """Splits a save of ``ns``: time in which the thread was neither on a CPU nor queued for one was blocked in the
    write, unless it waited for a thread that had ``helped_ns`` of CPU time meanwhile."""
    own = max(0, cpu_ns + queue_ns)
    return ((_SAVE_CPU, max(own, min(ns, own + helped_ns))), (_WRITE, -1))


def shares(parts: Parts, ns: int) -> tuple[tuple[int, float], ...]:
    """Converts the parts of ``ns`` to shares."""
    rest, found = ns, []
    for cause, part in parts[:-1]:
        part = min(part, rest)
        rest -= part
        found.append((cause, part / max(ns, 1)))
    return (*found, (parts[-1][0], rest / max(ns, 1)))
