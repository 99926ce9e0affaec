"""Where in a step a rank's own time is, and how much of it a change removes. Pure functions.

The ring has a rank's own time by step and cause, and how much of it is between two waits, but not which causes are
between them. So an order is assumed. A step ends with the step of the optimizer, so first comes what the loop does
between steps (its own code, saves), then the batch, then compute. Time with an unknown place, such as waits that are
not in the ring, counts as part of compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low
from typing import NamedTuple

from ...ledger.cause_rows import CAUSE_ROWS
from ...ledger.causes import CAUSE, CAUSES, WORK_CAUSES
from ...ledger.waits import LATE_STEP
from .changes import NONE, Changes
from .loader import DATA, Batch, Loader
from .trace import RankStep, RankTrace, Trace

_BEFORE, _WORK = (tuple(CAUSE[row.name] for row in CAUSE_ROWS if row.place == place) for place in ("before", "work"))
_BALANCED = tuple(CAUSE[cause] for cause in (*WORK_CAUSES, "host_blocked"))
"""The causes that count as the compute of a stage. On a CPU rank, work that leaves all CPUs idle is `host_blocked`."""
_READ, _WRITE, _CPU = CAUSE["data_read"], CAUSE["checkpoint_write"], CAUSE["checkpoint_cpu"]


class Stretch(NamedTuple):
    """Own time between two places, in ns. ``ns``: how much of it is beyond that of the peers, or is removed."""

    start: float
    end: float
    ns: float


class Excess(NamedTuple):
    """What makes a rank late in a step, in ns: by cause, and where it is. Empty: not known where."""

    causes: dict[int, int]
    places: tuple[Stretch, ...]


_NO_EXCESS = Excess({}, ())


@dataclass(frozen=True, slots=True)
class Own:
    """A rank's own time in a step, and how much of it a change removes. All in ns.

    A place is the own time from the start of the step up to a moment. The order is: before, data, then compute.
    """

    before: float
    data: float
    length: float
    saved_before: float
    saved_work: float
    batch: Batch
    placed: tuple[Stretch, ...] = ()
    """What is removed at places that are known."""

    def saved(self, start: float, end: float) -> float:
        """How much is removed between two places, without the wait for the batch."""
        work = self.before + self.data
        taken = sum(one.ns * _overlap(start, end, *one[:2]) / (one.end - one.start) for one in self.placed)
        if self.saved_before and self.before:
            taken += self.saved_before * _overlap(start, end, 0.0, self.before) / self.before
        if self.saved_work and self.length > work:
            taken += self.saved_work * _overlap(start, end, work, self.length) / (self.length - work)
        return taken


def _overlap(start: float, end: float, low: float, high: float) -> float:
    return max(0.0, min(end, high) - max(start, low))


def owns_of(trace: Trace, changes: Changes) -> list[list[Own]]:
    """The own time of each rank in each step: one list for each rank."""
    if changes.async_save and trace.own_saves:
        trace = replace(trace, ranks=tuple(_written(one) for one in trace.ranks))
    factors = factors_of(changes)
    removes = [cause for cause in (*_BEFORE, *_WORK) if factors[cause] < 1]
    excesses = _excesses(trace) if changes.no_stragglers or removes else {}
    by = {CAUSE[cause] for cause in changes.late_by} or {*range(len(CAUSES))} if changes.no_stragglers else set()
    balance = _balance(trace) if changes.balanced else {}
    found = []
    for one in trace.ranks:
        theirs = _of_mounts(one, factors, changes)
        loader = Loader(one, theirs, changes)
        writing = _still_written(one, factors, changes) if changes.async_save else {}
        mine = []
        for index, step in enumerate(one.steps):
            excess = excesses.get((one.rank, index), _NO_EXCESS)
            taken = {cause: ns for cause, ns in excess.causes.items() if cause in by}
            batch = loader.batch(index, sum(taken.get(cause, 0) for cause in DATA))
            more = balance.get(one.rank, 0.0), step.unsplit if changes.hidden else 0
            mine.append(_own(step, theirs, taken, more, batch, excess, writing.get(index, 0.0)))
        found.append(mine)
    return found


def _written(one: RankTrace) -> RankTrace:
    """With saves that write in all of their time: what serialises or compresses can also do so beside the loop."""
    steps = []
    for step in one.steps:
        own = [*step.own]
        own[_WRITE], own[_CPU] = own[_WRITE] + own[_CPU], 0
        steps.append(step._replace(own=tuple(own)))
    return replace(one, steps=tuple(steps))


def starting(trace: Trace, changes: Changes) -> float:
    """How many ns a step becomes longer, on average over the ranks, because more data workers start."""
    if not changes.workers:
        return 0.0
    factors = factors_of(changes)
    return sum(Loader(one, factors, changes).starting() for one in trace.ranks) / len(trace.ranks)


def factors_of(changes: Changes) -> list[float]:
    """For each cause, in the order of CAUSES, its new time divided by its old time."""
    speed = {"storage": changes.storage, "cpu": changes.cpu, "host": changes.host, "compute": changes.compute}
    factors = {row.name: 1.0 if row.place == "waits" else speed.get(row.faster, 1.0) for row in CAUSE_ROWS}
    factors["data_read"] *= 1.0 if changes.mounts else changes.reads
    factors["checkpoint_write"] *= NONE if changes.async_save else changes.checkpoint
    factors["checkpoint_cpu"] *= changes.checkpoint
    for cause in changes.causes:
        factors[cause] = NONE
    return [factors[cause] for cause in CAUSES]


def _of_mounts(one: RankTrace, factors: list[float], changes: Changes) -> list[float]:
    """The factors of a rank: the part of its reads that is at the changed mounts."""
    if not changes.mounts:
        return factors
    part = sum(part.weight for part in one.reads if part.at is None or part.at in changes.mounts)
    found = [*factors]
    found[_READ] *= 1 - part * (1 - changes.reads)
    return found


def _own(
    step: RankStep,
    factors: Sequence[float],
    late: Mapping[int, int],
    more: tuple[float, int],
    batch: Batch,
    excess: Excess,
    writing: float,
) -> Own:
    """``late``: by cause, ns that are removed first. ``more``: ns removed from compute, and from waits not in the
    ring. ``writing``: ns for which a save waits for the one before it."""
    saved = [(ns - late.get(cause, 0)) * (1 - factors[cause]) + late.get(cause, 0) for cause, ns in enumerate(step.own)]
    if writing:
        saved[_WRITE] -= min(writing, step.own[_WRITE] - late.get(_WRITE, 0))
    beyond = {cause: late.get(cause, ns * (1 - factors[cause])) for cause, ns in excess.causes.items()}
    balance, unsplit = more
    found, placed = sum(ns for cause, ns in beyond.items() if cause not in DATA), sum(one.ns for one in excess.places)
    part = min(found, placed) / found if found and placed else 0.0
    before, work = (sum(saved[c] - part * beyond.get(c, 0) for c in place) for place in (_BEFORE, _WORK))
    return Own(
        before=sum(step.own[cause] for cause in _BEFORE),
        data=sum(step.own[cause] for cause in DATA),
        length=_length(step),
        saved_before=before,
        saved_work=work + min(balance, sum(step.own[c] for c in _WORK)) + unsplit,
        batch=batch,
        placed=tuple(one._replace(ns=one.ns * part * found / placed) for one in excess.places) if part else (),
    )


def _still_written(one: RankTrace, factors: Sequence[float], changes: Changes) -> dict[int, float]:
    """By the index of a step with a save, for how many ns the saves before it are still written.

    They do not block the loop, and are written one after the other.
    """
    found: dict[int, float] = {}
    left = 0.0
    for _ in range(2):  # what is left at the end is there at the beginning, because the run went on like that
        for index, step in enumerate(one.steps):
            if write := step.own[_WRITE] * changes.storage * changes.checkpoint:
                found[index] = min(left, write)
                left += write - found[index]
            gone = sum(ns * (1 - factors[cause]) for cause, ns in enumerate(step.own) if cause != _WRITE)
            left = max(0.0, left - max(0.0, step.wall - step.own[_WRITE] - gone))
    return found


def _excesses(trace: Trace) -> dict[tuple[int, int], Excess]:
    """(rank, index of the step) -> what the rank's own time exceeded its peers', if that made it late."""
    peers = _peers(trace)
    totals = [[sum(step.own) for step in one.steps] for one in trace.ranks]
    found: dict[tuple[int, int], Excess] = {}
    for place, one in enumerate(trace.ranks):
        others = peers[place]
        if len(others) < 2:
            continue
        for index, step in enumerate(one.steps):
            excess = totals[place][index] - median_low(totals[other][index] for other in others)
            if excess < LATE_STEP * step.wall:
                continue
            theirs = [trace.ranks[other].steps[index] for other in others]
            beyond = {
                cause: max(0, ns - median_low(step.own[cause] for step in theirs))
                for cause, ns in enumerate(step.own)
                if ns
            }
            late: dict[int, int] = {}
            for cause in sorted(beyond, key=lambda cause: -beyond[cause]):
                late[cause] = min(beyond[cause], excess)
                excess -= late[cause]
            found[one.rank, index] = Excess(late, _places(one, step, theirs))
    return found


def _places(one: RankTrace, step: RankStep, theirs: Sequence[RankStep]) -> tuple[Stretch, ...]:
    """Between which waits a rank takes longer than its peers. Nothing if their waits cannot be compared."""
    if any(one.slots[call.slot].pairwise for call in step.calls):
        return ()
    if any([call.slot for call in each.calls] != [call.slot for call in step.calls] for each in theirs):
        return ()
    found, start = [], 0.0
    gaps = [[*(call.gap_ns for call in each.calls)] for each in theirs]
    for index, call in enumerate(step.calls):
        end = start + call.gap_ns
        if (more := call.gap_ns - median_low(each[index] for each in gaps)) > 0:
            found.append(Stretch(start, end, more))
        start = end
    tails = [_length(each) - sum(gap) for each, gap in zip(theirs, gaps, strict=True)]
    length = _length(step)
    if (more := length - start - median_low(tails)) > 0:
        found.append(Stretch(start, length, more))
    return tuple(found)


def _length(step: RankStep) -> int:
    return max(0, step.wall - sum(call.ns for call in step.calls))


def _peers(trace: Trace) -> list[list[int]]:
    """For each rank, the ranks that do the same work: the members of its groups, itself included. Other stages of a
    pipeline, and groups that contain other stages, are left out. Ranks are given by their index in the trace."""
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
    """Rank -> how much less it computes in a step, in ns, if all stages of its pipeline compute for the same time."""
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
