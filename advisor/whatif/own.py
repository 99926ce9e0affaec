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
from .loader import DATA, Batch, Loader
from .trace import RankStep, Trace

_BEFORE = tuple(
    CAUSE[cause]
    for cause in ("host", "host_gc", "host_compile", "checkpoint_write", "checkpoint_cpu", "checkpoint_read", "startup")
)
_WORK = tuple(CAUSE[cause] for cause in ("compute", "recompute", "host_blocked", "unattributed"))
_BALANCED = tuple(CAUSE[cause] for cause in ("compute", "recompute", "host_blocked"))
"""What a stage computes. On a CPU rank, work that leaves all CPUs idle counts as `host_blocked`."""


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
    factors = factors_of(changes)
    late = _lateness(trace) if changes.no_stragglers else {}
    balance = _balance(trace) if changes.balanced else {}
    found = []
    for one in trace.ranks:
        loader = Loader(one, factors, changes)
        mine = []
        for index, step in enumerate(one.steps):
            taken = late.get((one.rank, index), {})
            batch = loader.batch(index, sum(taken.get(cause, 0) for cause in DATA))
            more = balance.get(one.rank, 0.0), step.unsplit if changes.hidden else 0
            mine.append(_own(step, factors, taken, more, batch))
        found.append(mine)
    return found


def factors_of(changes: Changes) -> list[float]:
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
    for cause in changes.causes:
        factors[cause] = NONE
    return [factors[cause] for cause in CAUSES]


def _own(
    step: RankStep, factors: Sequence[float], late: Mapping[int, int], more: tuple[float, int], batch: Batch
) -> Own:
    """``late``: what is taken first, by cause; ``more``: what is taken of compute, and of waits that are in no ring."""
    saved = [(ns - late.get(cause, 0)) * (1 - factors[cause]) + late.get(cause, 0) for cause, ns in enumerate(step.own)]
    balance, unsplit = more
    return Own(
        before=sum(step.own[cause] for cause in _BEFORE),
        data=sum(step.own[cause] for cause in DATA),
        length=max(0, step.wall - sum(call.ns for call in step.calls)),
        saved_before=sum(saved[cause] for cause in _BEFORE),
        saved_work=sum(saved[cause] for cause in _WORK) + min(balance, sum(step.own[c] for c in _WORK)) + unsplit,
        batch=batch,
    )


def _lateness(trace: Trace) -> dict[tuple[int, int], dict[int, int]]:
    """Rank, step -> by cause what the rank's own time had beyond its peers', where that made it late."""
    peers = _peers(trace)
    totals = [[sum(step.own) for step in one.steps] for one in trace.ranks]
    found: dict[tuple[int, int], dict[int, int]] = {}
    for place, one in enumerate(trace.ranks):
        others = peers[place]
        if len(others) < 2:
            continue
        for index, step in enumerate(one.steps):
            excess = totals[place][index] - median_low(totals[other][index] for other in others)
            if excess < LATE_STEP * step.wall:
                continue
            theirs = [trace.ranks[other].steps[index].own for other in others]
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
