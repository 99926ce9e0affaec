"""Where in a step a rank's own time is, and how much of it a change removes. Pure functions.

The ring has a rank's own time by step and cause, and how much of it is between two waits, but not which causes are
between them. So an order is assumed. A step ends with the step of the optimizer, so first comes what the loop does
between steps (its own code, saves), then the batch, then compute. Time with an unknown place, such as waits that are
not in the ring, counts as part of compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from ...ledger.cause_rows import CAUSE_ROWS
from ...ledger.causes import CAUSE, CAUSES, WORK_CAUSES
from ...ledger.waits import LATE_STEP
from .changes import NONE, Changes
from .loader import DATA, Batch, Loader
from .trace import RankStep, Trace

_BEFORE, _WORK = (tuple(CAUSE[row.name] for row in CAUSE_ROWS if row.place == place) for place in ("before", "work"))
_BALANCED = tuple(CAUSE[cause] for cause in (*WORK_CAUSES, "host_blocked"))
"""The causes that count as the compute of a stage. On a CPU rank, work that leaves all CPUs idle is `host_blocked`."""


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

    def saved(self, start: float, end: float) -> float:
        """How much is removed between two places, without the wait for the batch."""
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
    """The own time of each rank in each step: one list for each rank."""
    factors = factors_of(changes)
    late = _lateness(trace, changes.late_by) if changes.no_stragglers else {}
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
    factors["data_read"] *= changes.reads
    factors["checkpoint_write"] *= NONE if changes.async_save else changes.checkpoint
    factors["checkpoint_cpu"] *= changes.checkpoint
    for cause in changes.causes:
        factors[cause] = NONE
    return [factors[cause] for cause in CAUSES]


def _own(
    step: RankStep, factors: Sequence[float], late: Mapping[int, int], more: tuple[float, int], batch: Batch
) -> Own:
    """``late``: by cause, ns that are removed first. ``more``: ns removed from compute, and from waits not in the
    ring."""
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


def _lateness(trace: Trace, by: Sequence[str] = ()) -> dict[tuple[int, int], dict[int, int]]:
    """(rank, index of the step) -> by cause, the ns that the rank's own time exceeded its peers', if that made it
    late. ``by``: only these causes; empty: all."""
    peers = _peers(trace)
    causes = {CAUSE[cause] for cause in by} or {*range(len(CAUSES))}
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
            found[one.rank, index] = {cause: ns for cause, ns in late.items() if cause in causes}
    return found


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
