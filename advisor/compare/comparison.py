"""Compares runs with the first of them: what is faster, how certain that is, and which family the seconds come from.

Pure functions over reports, as `whyidle report --json` prints them. All times are in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ...ledger.causes import FAMILIES
from ...verdict.saved import Report
from ..statistics import Interval, difference, of_draws, quantile_draws, ratio
from .measures import (
    END,
    MEASURES,
    Value,
    check_steps,
    end_to_end,
    family_values,
    seconds_per_step,
    whole_value,
)
from .moved import moved
from .moved_links import moved_link
from .scaling import Scaling, scaling

TOLD = {"faster", "slower"}
UNTOLD, NO_INTERVAL, LACKING = "no clear difference", "no interval", "not known"


@dataclass(frozen=True, slots=True)
class Row:
    """One measure of a run and of the first run."""

    name: str
    label: str
    what: str
    before: float | None
    after: float | None
    speedup: float | None = None
    """before / after"""
    speedup_interval: Interval | None = None
    difference: float | None = None
    """after − before"""
    difference_interval: Interval | None = None
    finding: str = LACKING

    @property
    def told(self) -> bool:
        """Whether the interval of the difference shows that it is more than chance."""
        return self.finding in TOLD


@dataclass(frozen=True, slots=True)
class Pair:
    """A run compared with the first run."""

    name: str
    rows: list[Row]
    families: list[Row]
    whole: Row
    """Seconds per step, which is the sum of the families."""


@dataclass(frozen=True, slots=True)
class Described:
    """A run, described for people."""

    name: str
    run: str
    ranks: int
    world_size: int
    steps: int
    seconds_per_step: float
    verdict: str
    """`too short to judge: …` if the run is too short for one; empty if the report has no verdict."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two or more runs, compared with the first of them."""

    runs: list[Described]
    steps: int
    """The number of steps that `end to end` counts."""
    pairs: list[Pair]
    scaling: list[Scaling] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    named: Sequence[tuple[str, Report]], samples_per_step: Sequence[float] | None = None, kind: str | None = None
) -> Comparison:
    """Compares two or more named reports with the first of them. Raises NoComparison.

    ``samples_per_step`` and ``kind``: see scaling.py.
    """
    for name, report in named:
        check_steps(name, report)
    steps = min(int(report["steps"]) for _, report in named)
    first = named[0][1]
    return Comparison(
        [_described(name, report) for name, report in named],
        steps,
        [_pair(name, first, report, steps) for name, report in named[1:]],
        scaling(named, samples_per_step, kind),
        [
            *(note for name, report in named[1:] for note in moved(name, report, *named[0])),
            *(note for name, report in named[1:] for note in moved_link(name, report, *named[0])),
            *(note for name, report in named for note in _notes(name, report, steps)),
        ],
    )


def _described(name: str, report: Report) -> Described:
    verdict = report.get("verdict") or {}
    said = f"{verdict['family']} {100 * verdict['share']:.0f} %: {verdict['summary']}" if "summary" in verdict else ""
    said = said or (report.get("too_short") or {}).get("sentence", "")
    run = f"{report['owner']}/{report['run']}" if report.get("owner") else report["run"]
    return Described(
        name,
        run,
        int(report["ranks"]),
        int(report["world_size"]),
        int(report["steps"]),
        seconds_per_step(report),
        said,
    )


def _pair(name: str, first: Report, other: Report, steps: int) -> Pair:
    rows = [
        row(measure.name, measure.label, measure.what, measure.of(first), measure.of(other)) for measure in MEASURES
    ]
    what = f"startup and {steps} steps"
    rows.append(row(END, "end to end", what, end_to_end(first, steps), end_to_end(other, steps)))
    before, after = family_values(first), family_values(other)
    families = [row(name, name, "of a step", before[name], after[name]) for name in FAMILIES]
    kept = [one for one in families if one.before or one.after]
    return Pair(name, rows, kept, row("whole", "all", "of a step", whole_value(first), whole_value(other)))


def row(name: str, label: str, what: str, before: Value | None, after: Value | None) -> Row:
    """Compares two values. If the interval of the difference contains 0, or the sample is too small for its quantile,
    the finding is UNTOLD."""
    if before is None or after is None:
        return Row(name, label, what, before and before.value, after and after.value)
    speedup = before.value / after.value if after.value > 0 else None
    times, by = _intervals(before, after)
    delta = after.value - before.value
    if by is None:
        finding = UNTOLD if before.unseen or after.unseen else NO_INTERVAL
    elif by[0] <= 0 <= by[1]:
        finding = UNTOLD
    else:
        finding = "faster" if delta < 0 else "slower"
    return Row(name, label, what, before.value, after.value, speedup, times, delta, by, finding)


def _intervals(before: Value, after: Value) -> tuple[Interval | None, Interval | None]:
    """Returns the intervals of the speed-up and of the difference."""
    if before.estimate is not None and after.estimate is not None:
        return ratio(before.estimate, after.estimate), difference(before.estimate, after.estimate)
    if before.series and after.series and not before.unseen and not after.unseen:
        ones, others = quantile_draws(before.series, before.q, 0), quantile_draws(after.series, after.q, 1)
        if ones is not None and others is not None:
            pairs = [*zip(ones, others, strict=True)]
            times = [one / other for one, other in pairs if other > 0]
            by = of_draws([other - one for one, other in pairs])
            return of_draws(times) if len(times) == len(pairs) else None, by
    return None, None


def _notes(name: str, report: Report, steps: int) -> list[str]:
    """Sentences about what is missing from a report or left out of the comparison."""
    found = [f"{name}: {note}" for note in report.get("notes") or ()]
    if report["world_size"] > report["ranks"]:
        found.append(
            f"{name} has {report['ranks']:.0f} of {report['world_size']:.0f} ranks: the other ranks are missing"
        )
    if not report.get("format"):
        found.append(
            f"{name} was saved by an earlier whyidle: it has no single steps, so no batch waits, saves or intervals"
        )
    elif not report.get("recent"):
        found.append(f"{name} has no steps that all its ranks share, so no batch waits or intervals")
    if report["steps"] > steps and report["startup_seconds"] is not None:
        found.append(f"{name} made {report['steps']:.0f} steps: end to end counts {steps} of them")
    return found
