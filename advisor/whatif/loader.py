"""The wait for the batch of a step, and how a change shortens it. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ledger.causes import CAUSE, CAUSES
from .changes import Changes
from .trace import RankStep, RankTrace

DATA = tuple(CAUSE[cause] for cause in ("data_read", "data_cpu", "data_queue", "data_handoff"))
_READ, _CPU, _QUEUE, _HANDOFF = DATA
_MADE = (_READ, _CPU, _QUEUE)
_REAL = 0.02
"""A wait in which the worker read and computed for less than this share of a step is none for a batch that it made: the
way of one that lies ready takes a moment, too."""
_NO_CPU = 0.1
"""Workers that queue for a CPU for this share of their CPU time have none to spare: more of them compute no faster."""
_PREFETCHED = 2
"""Batches that a worker makes ahead: what DataLoader's prefetch_factor is unless said."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The wait for the batch of a step. ns"""

    saved: float
    """What of it is taken where nothing else bounds that."""
    bound: bool = False
    """Whether the workers are busy all the time, so that the loop is as slow as they are."""
    wait: float = 0.0
    """How much of it is for a batch that is being made; 0 where batches lay ready."""
    lead: float = 0.0
    """How much earlier than the last one the batch is made."""
    ahead: float = 0.0
    """How far the workers can be ahead of the loop."""


class Loader:
    """The loader of one rank.

    A loop that waits again and again, each time for a batch that is being made, is as slow as its workers. They are
    busy all the time: a batch takes each of them, divided among them, as long as the step took. Of that, the parts are
    those of all waits. Where the loop waits now and then, only the wait itself is known.
    """

    def __init__(self, one: RankTrace, factors: Sequence[float], changes: Changes):
        """``factors``: by cause, how long its time takes then."""
        self._one, self._factors, self._changes = one, factors, changes
        self._real = [step.own[_READ] + step.own[_CPU] >= _REAL * step.wall for step in one.steps]
        whole = [sum(step.own[cause] for step in one.steps) for cause in range(len(CAUSES))]
        made = sum(whole[cause] for cause in _MADE)
        share = one.workers / (one.workers + changes.workers) if one.workers > 0 else 1.0
        self._then = self._made_then(whole, share) / made if made else 1.0

    def batch(self, index: int, late: int) -> Batch:
        """Of a step. ``late``: what is taken because it made the rank late, ns."""
        workers, more = self._one.workers, self._changes.workers
        step = self._one.steps[index]
        made, wait = sum(step.own[cause] for cause in _MADE), sum(step.own[cause] for cause in DATA)
        handoff = (wait - made) * self._factors[_HANDOFF]
        if more and workers == 0:
            then = self._made_then(step.own, 1 / more) - late
            return _bound(step, max(0.0, wait - handoff), then, more)
        if workers <= 0 or not self._busy(index):
            return Batch(min(float(wait), wait - handoff - self._made_then(step.own, 1.0) + late))
        held = max(0.0, wait - handoff) if self._real[index] else 0.0
        return _bound(step, held, step.wall * self._then - late, workers + more)

    def _made_then(self, own: Sequence[int], share: float) -> float:
        """How long making a batch takes then, when a part of its time is to be had with more workers.

        Workers that queue for a CPU have none to spare: more of them read sooner, but compute no faster.
        """
        computing = own[_CPU] * self._factors[_CPU] + own[_QUEUE] * self._factors[_QUEUE]
        crowded = own[_QUEUE] > _NO_CPU * (own[_CPU] + own[_QUEUE])
        return own[_READ] * self._factors[_READ] * share + computing * (1.0 if crowded else share)

    def _busy(self, index: int) -> bool:
        """Whether the loop waited for a batch that was being made both in this step or soon after, and not long before.

        Workers that began together deliver together, so that the loop waits once in as many steps as there are workers.
        """
        workers = self._one.workers
        return any(self._real[max(0, index - workers) : index]) and any(self._real[index : index + workers])


def _bound(step: RankStep, wait: float, then: float, workers: int) -> Batch:
    """Workers make a batch every ``then`` ns."""
    return Batch(0.0, True, wait, step.wall - then, _PREFETCHED * workers * max(0.0, then))
