"""The wait for the batch of a step, and how a change shortens it. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ledger.cause_rows import CAUSE_ROWS
from ...ledger.causes import CAUSE, CAUSES
from .changes import Changes
from .trace import RankStep, RankTrace

DATA = tuple(CAUSE[row.name] for row in CAUSE_ROWS if row.place == "data")
_READ, _CPU, _QUEUE, _HANDOFF = DATA
_MADE = (_READ, _CPU, _QUEUE)
_REAL = 0.02
"""If the worker read and computed for at least this share of the step, the loop waited for a batch that was being made.
Shorter waits are those for the transport of a batch that was ready."""
_NO_CPU = 0.1
"""If workers queue for a CPU for this share of their CPU time, no CPU is free: more workers do not compute faster."""
_START, _SLOW_START = 40e6, 200e6
"""The ns that the start and the end of a worker take in a loop that has none yet. With fork(2) and torch 2.13, two to
four workers took 30 to 60 ms each on two busy cores. The second one is for the lower bound: other start methods are
slower."""
_PREFETCHED = 2
"""The batches that a worker makes in advance: the default of DataLoader's prefetch_factor."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The wait for the batch of a step. All times in ns."""

    saved: float
    """How much shorter the wait becomes, if the workers are not the limit."""
    bound: bool = False
    """Whether the workers are busy all the time, so that the loop is as slow as the workers."""
    wait: float = 0.0
    """The part of the wait in which the batch was being made; 0 if the batch was ready."""
    lead: float = 0.0
    """How much earlier the workers finish this batch, in addition to what they gained on the batches before it."""
    ahead: float = 0.0
    """How far the workers can be ahead of the loop."""


class Loader:
    """The loader of one rank.

    If the loop waits regularly, each time for a batch that is being made, it is as slow as its workers. They are busy
    all the time, so making a batch takes as long as the step, if divided by the number of workers. Reading and
    computing have the same parts in that time as in all waits together. If the loop waits only now and then, nothing
    but the wait itself is known. The first batch of a worker after `__iter__` says nothing about the others: the
    worker has just been asked, or fills a buffer, and more workers or batches in advance would not make it sooner.
    """

    def __init__(self, one: RankTrace, factors: Sequence[float], changes: Changes):
        """``factors``: for each cause, its new time divided by its old time."""
        self._one, self._factors, self._changes = one, factors, changes
        self._ahead = (one.prefetched or _PREFETCHED) * one.steps_per_batch
        self._first = [2 * step.first > sum(step.own[cause] for cause in DATA) for step in one.steps]
        self._real = [
            not first and step.own[_READ] + step.own[_CPU] >= _REAL * step.wall
            for step, first in zip(one.steps, self._first, strict=True)
        ]
        others = [step for step, first in zip(one.steps, self._first, strict=True) if not first] or one.steps
        whole = [sum(step.own[cause] for step in others) for cause in range(len(CAUSES))]
        made = sum(whole[cause] for cause in _MADE)
        share = one.workers / (one.workers + changes.workers) if one.workers > 0 else 1.0
        self._then = self._made_then(whole, share) / made if made else 1.0

    def batch(self, index: int, late: int) -> Batch:
        """The wait for the batch of a step. ``late``: ns that are removed because they made the rank late."""
        workers, more = self._one.workers, self._changes.workers
        step = self._one.steps[index]
        made, wait = sum(step.own[cause] for cause in _MADE), sum(step.own[cause] for cause in DATA)
        handoff = (wait - made) * self._factors[_HANDOFF]
        if self._first[index]:
            left = 0.0 if self._changes.first_batches else self._made_then(step.own, 1.0)
            return Batch(min(float(wait), wait - handoff - left + late))
        if more and workers == 0:
            then = self._made_then(step.own, 1 / more) - late
            return _bound(step, max(0.0, wait - handoff), then, more * self._ahead)
        if workers <= 0 or not self._busy(index):
            return Batch(min(float(wait), wait - handoff - self._made_then(step.own, 1.0) + late))
        held = max(0.0, wait - handoff) if self._real[index] else 0.0
        return _bound(step, held, step.wall * self._then - late, (workers + more) * self._ahead)

    def starting(self) -> float:
        """How many ns a step becomes longer, on average, because more workers start at each `__iter__`.

        The loop starts one after the other. In a loop that had none, it then waits for a whole batch.
        """
        one, more = self._one, self._changes.workers
        if not more or one.workers < 0:
            return 0.0
        start = one.worker_start
        if start is None:
            start = _SLOW_START if self._changes.full else _START
        return one.starts * (more * start + (0.0 if one.workers else self._filling(more)))

    def _filling(self, workers: int) -> float:
        """How long the loop waits for the first batch, beyond what it waits for each batch if it had no workers."""
        steps = self._one.steps
        made = self._then * sum(step.own[cause] for step in steps for cause in _MADE) / len(steps)
        rest = sum(step.wall - sum(step.own[cause] for cause in DATA) for step in steps) / len(steps)
        return made - max(0.0, made / workers - rest)

    def _made_then(self, own: Sequence[int], share: float) -> float:
        """How long making a batch takes after the change, in ns. ``share``: old workers / new workers.

        If workers queue for a CPU now, more workers read sooner, but do not compute faster. Mounts that are at their
        bandwidth are read no faster.
        """
        computing = own[_CPU] * self._factors[_CPU] + own[_QUEUE] * self._factors[_QUEUE]
        crowded = own[_QUEUE] > _NO_CPU * (own[_CPU] + own[_QUEUE])
        full = self._changes.full
        reading = sum(part.weight * max(share, part.worst if full else part.floor) for part in self._one.reads)
        return own[_READ] * self._factors[_READ] * reading + computing * (1.0 if crowded else share)

    def _busy(self, index: int) -> bool:
        """Whether the loop waited for a batch that was being made both shortly before this step, and in it or shortly
        after.

        "Shortly" is one batch for each worker: workers that start together deliver together, so that the loop waits
        once in as many batches as there are workers.
        """
        near = self._one.workers * self._one.steps_per_batch
        return any(self._real[max(0, index - near) : index]) and any(self._real[index : index + near])


def _bound(step: RankStep, wait: float, then: float, ahead: int) -> Batch:
    """The wait for a batch if the workers make as much as a step needs every ``then`` ns. ``ahead``: for how many steps
    they make batches in advance."""
    return Batch(0.0, True, wait, step.wall - then, ahead * max(0.0, then))
