"""A stretch of a run as Prometheus recorded it, in the shape of a report, so that it can be compared. Pure functions.

Prometheus keeps no single steps. At each scrape it keeps how many seconds the ranks spent by cause, and how many steps
they made. So the stretch is cut into windows, and a window takes the place of a step in a report. Means and their
errors are known, while percentiles come from the histogram of step times and have no interval. The wait for the first
batch and the longest waits for batches are not known: the counters have sums over many steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...ledger.causes import CAUSE_FAMILY, FAMILIES
from ...ledger.directory import Run
from ...verdict.recent import DATA
from ...verdict.report import FORMAT
from ...verdict.saved import Report
from .measures import NoComparison
from .starts import Starts


@dataclass(frozen=True)
class Window:
    """Of all ranks together."""

    seconds: Mapping[str, float]
    """Rank-seconds by cause, from the first step on."""
    steps: float


@dataclass(frozen=True)
class Stretch:
    """What was recorded of a run between two moments."""

    run: Run
    windows: Sequence[Window]
    """In order; they adjoin."""
    steps: float
    """Of the rank that made most."""
    ranks: int
    world_size: int
    samples: float = 0.0
    quantiles: Mapping[str, float] = field(default_factory=dict)
    """Step times in seconds: p50, p99."""
    saves: int = 0
    saving: float = 0.0
    """Seconds of saves, of the rank that they blocked longest."""
    seconds: float = 0.0
    """How long the stretch is."""
    looked_through: Mapping[str, float] = field(default_factory=dict)
    """Rank-seconds by which a family has more, because waits for late ranks count under what made these late. Empty if
    that is not known."""
    starts: Starts = field(default_factory=Starts)
    notes: Sequence[str] = ()


def report_of(stretch: Stretch) -> Report:
    """What `compare` takes. Raises NoComparison."""
    begun = stretch.starts
    windows = [Window(_of_steps(window, begun), window.steps) for window in stretch.windows]
    made = sum(window.steps for window in windows)
    seconds: dict[str, float] = {}
    for window in windows:
        for cause, spent in window.seconds.items():
            seconds[cause] = seconds.get(cause, 0.0) + spent
    whole = sum(seconds.values())
    if made < 1 or whole <= 0:
        raise NoComparison("has made no step in this time")
    return {
        "format": FORMAT,
        "owner": stretch.run[0],
        "run": stretch.run[1],
        "ranks": stretch.ranks,
        "world_size": max(stretch.ranks, stretch.world_size),
        "steps": round(stretch.steps),
        "wall_seconds": stretch.seconds,
        "startup_seconds": begun.startup,
        "rank_seconds": whole,
        "seconds": seconds,
        "explained": _explained(seconds, stretch.looked_through),
        "per_rank": [{"steps": made}],
        "samples": stretch.samples,
        "saves": {"count": stretch.saves, "seconds": stretch.saving} if stretch.saves else {},
        "restores": {"count": begun.restores, "seconds": begun.restoring} if begun.restores else {},
        "step_quantiles": dict(stretch.quantiles),
        "recent": _windows(windows),
        "notes": list(stretch.notes),
    }


def looked_through(billed: Mapping[str, float], spent: Mapping[str, float]) -> dict[str, float]:
    """By how many rank-seconds the bill of each family differs from what its causes took. Empty without a bill."""
    return {family: billed.get(family, 0.0) - spent.get(family, 0.0) for family in FAMILIES} if billed else {}


def _explained(seconds: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float] | None:
    if not more:
        return None
    found = {family: more.get(family, 0.0) for family in FAMILIES}
    for cause, spent in seconds.items():
        found[CAUSE_FAMILY[cause]] += spent
    return found


def _of_steps(window: Window, begun: Starts) -> dict[str, float]:
    """Seconds by cause. If an attempt began in this time, its restore is a part of the startup, not of the steps."""
    return {
        cause: max(0.0, spent)
        for cause, spent in window.seconds.items()
        # Other causes are the time of GPUs without hooks, or of a newer agent.
        if cause in CAUSE_FAMILY and not (cause == "checkpoint_read" and begun.startup is not None)
    }


def _windows(windows: Sequence[Window]) -> dict[str, object] | None:
    """Takes the place of the last steps: for each window with steps, how long its steps took on average."""
    rows = [window for window in windows if window.steps >= 1 and sum(window.seconds.values()) > 0]
    if not rows:
        return None
    families: dict[str, list[float]] = {family: [] for family in FAMILIES}
    for window in rows:
        spent = dict.fromkeys(FAMILIES, 0.0)
        for cause, seconds in window.seconds.items():
            spent[CAUSE_FAMILY[cause]] += seconds / window.steps
        for family, seconds in spent.items():
            families[family].append(seconds)
    return {
        "step_seconds": [sum(each) for each in zip(*families.values(), strict=True)],
        "families": {family: series for family, series in families.items() if any(series)},
        "data_wait_seconds": [sum(window.seconds.get(cause, 0.0) for cause in DATA) / window.steps for window in rows],
    }
