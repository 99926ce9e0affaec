"""Where in a step a rank's own time lies, and how much of it a change takes away. Pure functions.

The ring has a rank's own time per step and cause, and how much of it lies between two waits, but not which causes lie
there. A loop does the same in each step, and a step ends with the optimizer's: first comes what the loop does between
steps (its own code, saves), then the batch, then compute. So a step's own time is put in this order. Time of which
nobody knows where it lay, such as waits that are in no ring, stands with compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from ...ledger.causes import CAUSE, CAUSES
from ...ledger.waits import LATE_STEP
from .changes import NONE, Changes
from .trace import RankStep, RankTrace, Trace

DATA = tuple(CAUSE[cause] for cause in ("data_read", "data_cpu", "data_queue", "data_handoff"))
_BEFORE = tuple(
    CAUSE[cause]
    for cause in ("host", "host_gc", "host_compile", "checkpoint_write", "checkpoint_cpu", "checkpoint_read", "startup")
)
_WORK = tuple(CAUSE[cause] for cause in ("compute", "recompute", "host_blocked", "unattributed"))
_BALANCED = tuple(CAUSE[cause] for cause in ("compute", "recompute", "host_blocked"))
"""What a stage computes. On a CPU rank, work that leaves all CPUs idle counts as `host_blocked`."""
_READ, _CPU, _QUEUE, _HANDOFF = DATA
_MADE = (_READ, _CPU, _QUEUE)
_REAL = 0.02
"""A wait in which the worker read and computed for less than this share of a step is none for a batch that it
made: the way of one that lies ready takes a moment, too."""
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


@dataclass(frozen=True, slots=True)
class Own:
    """A rank's own time in a step, and what a change takes of it. ns; places count own time from the step's start."""

    before: float
    data: float
    length: float
    saved_before: float
    saved_work: float
    batch: Batch

    def saved(self, start: float, end: float) -> float:
        """What is taken between two places. The wait for the batch is not part of it."""
        work = self.before + self.data
        taken = 0.0
        if self.saved_before and self.before:
            taken += self.saved_before * _overlap(start, end, 0.0, self.before) / self.before
        if self.saved_work and self.length > work:
            taken += self.saved_work * _overlap(start, end, work, self.length) / (self.length - work)
        return taken


def _overlap(start: float, end: float, low: float, high: float) -> float:
    return max(0.0, min(end, high) - max(start, low))


def owns_of(trace: Trace, changes: Changes) -> list[list[Own]]:
    """By rank and step."""
    factors = _factors(changes)
    late = _lateness(trace) if changes.no_stragglers else {}
    balance = _balance(trace) if changes.balanced else {}
    return [
        [
            _own(one, index, factors, late.get((one.rank, index), {}), balance.get(one.rank, 0.0), changes)
            for index in range(len(one.steps))
        ]
        for one in trace.ranks
    ]


def _factors(changes: Changes) -> list[float]:
    """By cause, how long its time takes then."""
    factors = dict.fromkeys(CAUSES, 1.0)
    for cause in ("data_read", "checkpoint_write", "checkpoint_read"):
        factors[cause] *= changes.storage
    for cause in ("data_cpu", "data_queue", "checkpoint_cpu"):
        factors[cause] *= changes.cpu
    for cause in ("host", "host_gc", "host_compile", "host_blocked"):
        factors[cause] *= changes.host
    for cause in ("compute", "recompute"):
        factors[cause] *= changes.compute
    factors["checkpoint_write"] *= NONE if changes.async_save else changes.checkpoint
    factors["checkpoint_cpu"] *= changes.checkpoint
    return [factors[cause] for cause in CAUSES]


def _own(
    one: RankTrace, index: int, factors: Sequence[float], late: Mapping[int, int], balance: float, changes: Changes
) -> Own:
    step = one.steps[index]
    saved = [(ns - late.get(cause, 0)) * (1 - factors[cause]) + late.get(cause, 0) for cause, ns in enumerate(step.own)]
    balance = min(balance, sum(step.own[cause] for cause in _WORK))
    unsplit = step.unsplit if changes.hidden else 0
    return Own(
        before=sum(step.own[cause] for cause in _BEFORE),
        data=sum(step.own[cause] for cause in DATA),
        length=max(0, step.wall - sum(call.ns for call in step.calls)),
        saved_before=sum(saved[cause] for cause in _BEFORE),
        saved_work=sum(saved[cause] for cause in _WORK) + balance + unsplit,
        batch=_batch(one, index, factors, sum(late.get(cause, 0) for cause in DATA), changes),
    )


def _batch(one: RankTrace, index: int, factors: Sequence[float], late: int, changes: Changes) -> Batch:
    """The wait for a batch, and what is taken of it.

    A loop that waits again and again, each time for a batch that is being made, is as slow as its workers. They are
    busy all the time: a batch takes each of them, divided among them, as long as the step took. Of that, the parts are
    those of the waits. Where the loop waits now and then, only the wait itself is known.
    """
    step = one.steps[index]
    made = _made(step)
    wait = sum(step.own[cause] for cause in DATA)
    handoff = (wait - made) * factors[_HANDOFF]
    if changes.workers and one.workers == 0:
        then = _made_then(step.own, factors, changes, 1 / changes.workers)
        lead = step.wall - (then - late)
        return Batch(0.0, True, max(0.0, wait - handoff), lead, _PREFETCHED * changes.workers * then)
    saved = made - _made_then(step.own, factors, changes, 1.0) + late + (wait - made) * (1 - factors[_HANDOFF])
    if one.workers <= 0 or not _busy(one, index):
        return Batch(min(saved, wait))
    whole = [sum(each.own[cause] for each in one.steps) for cause in range(len(CAUSES))]
    share = one.workers / (one.workers + changes.workers)
    then = step.wall * _made_then(whole, factors, changes, share) / sum(whole[cause] for cause in _MADE)
    held = _is_real(step)
    workers = one.workers + changes.workers
    return Batch(
        0.0, True, max(0.0, wait - handoff) if held else 0.0, step.wall - then + late, _PREFETCHED * workers * then
    )


def _made(step: RankStep) -> int:
    """For how long the loop waited for a batch that was being made."""
    return sum(step.own[cause] for cause in _MADE)


def _is_real(step: RankStep) -> bool:
    return step.own[_READ] + step.own[_CPU] >= _REAL * step.wall


def _made_then(own: Sequence[int], factors: Sequence[float], changes: Changes, share: float) -> float:
    """How long making a batch takes then, when a part of its time is to be had with more workers.

    Workers that queue for a CPU have none to spare: more of them read sooner, but compute no faster.
    """
    computing = own[_CPU] * factors[_CPU] + own[_QUEUE] * factors[_QUEUE]
    crowded = own[_QUEUE] > _NO_CPU * (own[_CPU] + own[_QUEUE])
    return own[_READ] * factors[_READ] * share + computing * (1.0 if crowded and changes.workers else share)


def _busy(one: RankTrace, index: int) -> bool:
    """Whether the loop waited for a batch that was being made both in this step or soon after, and not long before.

    Workers that began together deliver together, so that the loop waits once in as many steps as there are workers.
    """
    real = [_is_real(step) for step in one.steps[max(0, index - one.workers) : index + one.workers]]
    before = min(index, one.workers)
    return any(real[:before]) and any(real[before:])


def _lateness(trace: Trace) -> dict[tuple[int, int], dict[int, int]]:
    """Rank, step -> by cause what the rank's own time had beyond its peers', where that made it late."""
    peers = _peers(trace)
    found: dict[tuple[int, int], dict[int, int]] = {}
    for place, one in enumerate(trace.ranks):
        others = peers[place]
        if len(others) < 2:
            continue
        for index, step in enumerate(one.steps):
            theirs = [trace.ranks[other].steps[index].own for other in others]
            excess = sum(step.own) - median_low(sum(own) for own in theirs)
            if excess < LATE_STEP * step.wall:
                continue
            beyond = {
                cause: max(0, ns - median_low(own[cause] for own in theirs)) for cause, ns in enumerate(step.own) if ns
            }
            late: dict[int, int] = {}
            for cause in sorted(beyond, key=lambda cause: -beyond[cause]):
                late[cause] = min(beyond[cause], excess)
                excess -= late[cause]
            found[one.rank, index] = late
    return found


def _peers(trace: Trace) -> list[list[int]]:
    """By place of a rank the places of those that do the same: members of its groups, but for the other stages of a
    pipeline, and for groups that have other stages in them."""
    members: dict[int, set[int]] = {}
    for place, one in enumerate(trace.ranks):
        for slot in one.slots.values():
            members.setdefault(slot.key, set()).add(place)
    found = []
    for place, one in enumerate(trace.ranks):
        stages = {other for slot in one.slots.values() if slot.pairwise for other in members[slot.key]} - {place}
        together = [members[slot.key] for slot in one.slots.values() if not slot.pairwise]
        found.append(sorted({place}.union(*(group for group in together if not group & stages))))
    return found


def _balance(trace: Trace) -> dict[int, float]:
    """Rank -> by how much less it computes in a step, ns, so that all stages of its pipeline have the same."""
    work = {one.rank: median(sum(step.own[cause] for cause in _BALANCED) for step in one.steps) for one in trace.ranks}
    stages: dict[int, list[int]] = {}
    for one in trace.ranks:
        for slot in one.slots.values():
            if slot.pairwise:
                stages.setdefault(slot.key, []).append(one.rank)
    found: dict[int, float] = {}
    for ranks in stages.values():
        mean = sum(work[rank] for rank in ranks) / len(ranks)
        for rank in ranks:
            found.setdefault(rank, work[rank] - mean)
    return found
