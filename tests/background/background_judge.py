"""What is wrong in what whyidle says about background work. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from background_lab import Observed
from background_rows import WITHIN, Case

Span = tuple[float, float]


@dataclass(frozen=True)
class Judged:
    """A row of the page."""

    name: str
    truth: float
    """The part of the run that the work has cost, by the job's own clock."""
    slower: float
    """The part of the time of the steps beside it."""
    told: float
    """What whyidle says; 0 if it says nothing."""
    told_slower: float
    step_ms: float
    """The mean of all steps."""
    what: str
    """Kind and name of the work, and the part of a step, as whyidle says."""
    wrong: list[str] = field(default_factory=list)

    def entry(self) -> dict[str, Any]:
        return asdict(self)


def judge(case: Case, seen: Observed) -> Judged:
    if not seen.truths:
        return Judged(case.name, 0.0, 0.0, 0.0, 0.0, 0.0, "", [f"the job did not end: {seen.output[-300:]}"])
    steps = seen.truths[0]["steps"]
    share, slower = cost(steps, seen.stretches, seen.truths[0]["blocked"])
    said = [one for one in seen.report["background"] if one["sentence"]]
    mine = [one for one in said if one["kind"] in case.kinds]
    best = max(mine or said, key=lambda one: one["share"], default=None)
    what = f"{best['kind']} {best['name']} ({best['part'] or 'several'})" if best else ""
    told = (best["share"], best["slower"]) if best else (0.0, 0.0)
    mean_ms = 1000 * fmean(end - begin for begin, end in steps)
    return Judged(case.name, share, slower, *told, mean_ms, what, [*_wrong(case, seen, share, said, mine)])


def _wrong(
    case: Case, seen: Observed, share: float, said: Sequence[dict[str, Any]], mine: Sequence[dict[str, Any]]
) -> Iterator[str]:
    if not case.kinds:
        yield from (f"says: {one['sentence']}" for one in said)
        return
    if not mine:
        if case.may_be_small and share < WITHIN:
            return
        yield f"does not name {' or '.join(case.kinds)}: {seen.report['background']}"
        return
    best = max(mine, key=lambda one: one["share"])
    if abs(best["share"] - share) > WITHIN:
        yield f"the cost differs by {100 * (best['share'] - share):+.1f} points"
    if case.parts and best["part"] not in case.parts:
        yield f"{best['part'] or 'no part'} instead of {' or '.join(case.parts)}"


def cost(steps: Sequence[Span], stretches: Sequence[Span], blocked: Sequence[Span] = ()) -> tuple[float, float]:
    """The part of all steps' time, and of that of the steps beside the work, that it has cost.

    ``blocked``: what is inside of steps and does not count.
    """
    beside = [
        end - begin - sum(after - before for before, after in blocked if begin <= before < end)
        for begin, end in steps
        if _overlap((begin, end), stretches)
    ]
    alone = [end - begin for begin, end in steps if not _overlap((begin, end), stretches)]
    if not beside or not alone:
        return 0.0, 0.0
    lost = sum(beside) - len(beside) * fmean(alone)
    return lost / (steps[-1][1] - steps[0][0]), lost / sum(beside)


def _overlap(step: Span, stretches: Sequence[Span]) -> bool:
    return any(begin < step[1] and end > step[0] for begin, end in stretches)
