"""Splits a wait among causes, from what was read before and after it. Nothing here reads anything."""

from __future__ import annotations

from ..ledger.causes import CAUSE
from .books import Parts
from .tasks import CpuTimes

_READ, _CPU, _QUEUE, _HANDOFF = (CAUSE[c] for c in ("data_read", "data_cpu", "data_queue", "data_handoff"))
_WRITE, _SAVE_CPU = CAUSE["checkpoint_write"], CAUSE["checkpoint_cpu"]

_BUSY_QUEUE = 4
"""A helper that works on a batch has at least this part of the time for which it queues on a CPU: 1 in so many."""


def split_data_wait(
    before: CpuTimes | None, after: CpuTimes | None, handoff_ns: int, helpers_queue_ns: int = 0
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


def cpu_between(before: CpuTimes, after: CpuTimes) -> tuple[int, int]:
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


def shares(parts: Parts, ns: int) -> tuple[tuple[int, float], ...]:
    """The parts of ``ns`` as shares of it."""
    rest, found = ns, []
    for cause, part in parts[:-1]:
        part = min(part, rest)
        rest -= part
        found.append((cause, part / max(ns, 1)))
    return (*found, (parts[-1][0], rest / max(ns, 1)))
