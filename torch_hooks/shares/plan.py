"""Which rank gets how many of a step's units (microbatches or samples). Pure functions, with the same result on all
ranks.

A rank's *pace* is its own time per unit, in ns. A rank with twice the pace needs twice the time. Shares make the
longest `count * pace` as short as whole units allow. If a part of a step does not depend on the number of units, the
pace of a rank with a smaller share seems larger, so that it keeps a little too much: later rounds come closer. They
never overshoot, because the time of a step grows at most in proportion to its units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import NamedTuple

LEAST, MOST = 0.5, 1.5
"""The bounds of a share, as parts of an equal one."""
GAIN, FURTHER_GAIN, BACK_GAIN = 0.06, 0.03, 0.02
"""By which part of the step a change must shorten it: away from equal shares, further away, and closer to them."""
KEPT_GAIN = 0.035
"""Equal shares return if others shorten the step by less than this part. A part of the step that does not depend on the
units makes a rank with few units look a little slow, so this is not much less than GAIN."""
ERRORS = 3
"""A rank is slow only if its pace, less this many standard errors, is."""


class Pace(NamedTuple):
    """A rank's own time per unit, and its standard error. Both in ns."""

    ns: int
    error: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What all ranks have agreed on."""

    paces: tuple[int, ...] = ()
    """By rank, in ns; empty for equal shares."""
    losing: frozenset[int] = frozenset()
    """The ranks that the last round would have given less. A change needs two rounds that agree on one of them."""


EQUAL = Plan()


def equal_counts(total: int, ranks: int) -> tuple[int, ...]:
    """Shares that differ by at most one unit. The first ranks get the larger ones."""
    each, rest = divmod(total, ranks)
    return tuple(each + (rank < rest) for rank in range(ranks))


def counts_of(total: int, ranks: int, paces: Sequence[int]) -> tuple[int, ...]:
    """The units of each rank; their sum is ``total``. ``paces``: by rank; empty for equal shares."""
    equal = equal_counts(total, ranks)
    if not paces or total < ranks:
        return equal
    each = total / ranks
    least = max(1, int(LEAST * each))
    most = max(int(MOST * each), equal[0])
    finish = total / sum([1 / pace for pace in paces])
    if not least <= finish / max(paces) <= finish / min(paces) <= most + 1:
        finish = _bounded_finish(total, paces, least, most, finish)
    # Each rank takes the units that it can finish until then, and the rest go one by one to the rank that finishes
    # first. So the last rank finishes as early as it can.
    counts = [min(most, max(least, int(finish / pace))) for pace in paces]
    left = total - sum(counts)
    soonest: list[tuple[float, int]] = [
        ((counts[rank] + 1) * pace, rank) for rank, pace in enumerate(paces) if counts[rank] < most
    ]
    heapify(soonest)
    for _ in range(left):
        rank = soonest[0][1]
        counts[rank] += 1
        after = (counts[rank] + 1) * paces[rank] if counts[rank] < most else float("inf")
        heapreplace(soonest, (after, rank))
    return tuple(counts)


def _bounded_finish(total: int, paces: Sequence[int], least: int, most: int, unbounded: float) -> float:
    """The time in which all ranks together, within their bounds, finish nearly all units, but no more. In ns."""
    low, high = 0.0, 4 * unbounded
    for _ in range(12):
        middle = (low + high) / 2
        if sum([min(most, max(least, int(middle / pace))) for pace in paces]) <= total:
            low = middle
        else:
            high = middle
    return low


def step_ns(counts: Sequence[float], paces: Sequence[float]) -> float:
    """When the last rank finishes."""
    return max(count * pace for count, pace in zip(counts, paces, strict=True))


def decide(plan: Plan, total: int, measured: Sequence[Pace]) -> Plan:
    """The next plan. ``measured``: by rank, under the present plan. Ranks that are measured alike keep equal shares."""
    ranks = len(measured)
    if total < ranks or any(pace.ns <= 0 for pace in measured):
        return EQUAL
    paces = tuple(pace.ns for pace in measured)
    now, equal, best = (counts_of(total, ranks, by) for by in (plan.paces, (), paces))
    spent = step_ns(now, paces)
    if plan.paces and step_ns(equal, paces) <= spent * (1 + KEPT_GAIN):
        # Fewer units for some rank do not help any more.
        returns = frozenset(rank for rank in range(ranks) if now[rank] > equal[rank])
        return EQUAL if returns & plan.losing else Plan(plan.paces, returns)
    if _distance(best, equal) < _distance(now, equal):
        needed = 1 + BACK_GAIN  # to go back is safe, so no measurement has to be certain
    else:
        needed = 1 + (FURTHER_GAIN if plan.paces else GAIN)
        spent = max(count * max(0, ns - ERRORS * error) for count, (ns, error) in zip(now, measured, strict=True))
    if spent < needed * step_ns(best, paces):
        return Plan(plan.paces)
    losing = frozenset(rank for rank in range(ranks) if best[rank] < now[rank])
    return Plan(paces) if losing & plan.losing else Plan(plan.paces, losing)


def _distance(counts: Sequence[int], equal: Sequence[int]) -> int:
    return sum([abs(one - other) for one, other in zip(counts, equal, strict=True)])
