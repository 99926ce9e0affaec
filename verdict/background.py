"""What background work costs the steps beside it, and how. Pure functions over what ranks have counted.

A stretch of work counts only beside others of its kind: a single one may be a coincidence. The cost of a step is their
mean. What differs much from the others counts as little as a usual difference does (winsorised at three robust standard
deviations), because a collection of garbage may fall into any stretch.

The standard error is the larger one of two: that of the stretches among each other, and what the steps around them
differ by. These are two means of the same length, and the stretch differs from the mean of both, so its variance is
1/2 + 1/4 of that of their difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import median

from ..ledger.background import Background, Comparison
from ..ledger.reader import Ledger

LEAST = 3
"""How many stretches have to be compared."""
SLOWER = 0.03
"""Steps have to lose at least this part of their time."""
SHARE = 0.005
"""A report mentions background work from this share of a rank's time on."""
_QUANTILES = (22.33, 10.21, 7.17, 5.89, 5.21, 4.79, 4.50, 4.30, 4.14, 4.02)
"""Student's t for 2, 3, ... degrees of freedom, one-sided, at 0.1 %."""
_ROBUST, _DEVIATIONS, _OF_DRIFT = 1.4826, 3.0, 0.75
_HALF = 0.5

WHAT: dict[str, str] = {
    "save": "asynchronous saves",
    "process": "the process {}, which the rank has started,",
    "thread": "the thread {}",
    "disk": "writes on the disk of {}",
    "link": "other transfers on the link {}",
    "neighbour": "other processes on the node",
}
"""Kind -> what works."""
HOW: dict[str, str] = {
    "lock": "Python's lock",
    "queue": "the CPUs",
    "compute": "the memory's bandwidth, caches or a shared core",
    "storage": "the disk or file server from which batches are read",
    "data": "the CPUs of the data workers",
    "waits": "the link, or ranks that are late because of it",
    "host": "the loop's own Python",
}
"""Part of a step -> what both need, if this part takes longer."""
_IN_PYTHON = ("save", "thread")
"""Kinds of work that may hold Python's lock. Where looks have seen that, blocked time beyond it counts, too."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one work has cost one rank. Shares are from 0 to 1."""

    rank: int
    kind: str
    name: str
    stretches: int
    compared: int
    steps: float
    """The steps beside it."""
    slower: float
    """The part of the time of these steps that it took."""
    share: float
    """The part of the rank's time since its first step."""
    error: float
    """The standard error of ``share``."""
    part: str
    """The part of a step that takes longer (PARTS); empty if it is not clear."""
    sure: bool

    @property
    def sentence(self) -> str:
        what = WHAT[self.kind].format(self.name)
        if self.kind == "save" and self.name:
            what += f" in a {self.name}"
        needs = f" Both need {HOW[self.part]}." if self.part else ""
        return (
            f"{what} cost{'s' if self.kind in ('process', 'thread') else ''} {100 * self.slower:.0f} % of the time of"
            f" the {self.steps:.0f} steps beside {'it' if self.kind in ('process', 'thread') else 'them'}:"
            f" {100 * self.share:.1f} % of the run (rank {self.rank}).{needs}"
        )


def entries(ledgers: Iterable[Ledger]) -> list[dict[str, object]]:
    """All costs for the report, largest first. Those to mention have a ``sentence``; that of the others is empty."""
    found = costs(ledgers)
    said = worst(found)
    return [{**asdict(cost), "sentence": cost.sentence if cost in said else ""} for cost in found]


def costs(ledgers: Iterable[Ledger]) -> list[Cost]:
    """The costs of all works that ranks have compared, largest first."""
    found = [cost for ledger in ledgers for one in ledger.backgrounds if (cost := cost_of(ledger, one)) is not None]
    return sorted(found, key=lambda cost: -cost.share)


def worst(found: Sequence[Cost]) -> list[Cost]:
    """Of each work that surely costs something: that on the rank where it costs most. The others wait for this rank."""
    worst: dict[tuple[str, str], Cost] = {}
    for cost in found:
        if cost.sure and cost.share >= SHARE:
            worst.setdefault((cost.kind, cost.name), cost)
    return list(worst.values())


def cost_of(ledger: Ledger, work: Background) -> Cost | None:
    """None if no stretch of the work was compared."""
    window = ledger.until_ns - ledger.window_ns
    if not work.last or window <= 0:
        return None
    excess, error = estimate(work.last)
    normal = work.normal_ns / max(work.compared_steps, 1e-9)
    share = excess * work.steps / window
    slower = excess / (normal + excess) if normal + excess > 0 else 0.0
    return Cost(
        ledger.rank,
        work.kind,
        work.name,
        work.stretches,
        work.compared,
        work.steps,
        slower,
        share,
        error * work.steps / window,
        _part(work),
        len(work.last) >= LEAST and slower >= SLOWER and excess > needed(len(work.last)) * error,
    )


def needed(count: int) -> float:
    """How many standard errors the mean of this many stretches has to differ from 0."""
    return _QUANTILES[min(count - LEAST, len(_QUANTILES) - 1)]


def estimate(last: Sequence[Comparison]) -> tuple[float, float]:
    """How much longer a step takes, and the standard error, ns."""
    weights = [one.steps for one in last]
    excess = _tamed([one.excess_ns for one in last])
    drifts = _tamed([one.drift_ns for one in last])
    whole = sum(weights)
    mean = sum(weight * value for weight, value in zip(weights, excess, strict=True)) / whole
    among = sum((weight * (value - mean)) ** 2 for weight, value in zip(weights, excess, strict=True))
    around = sum((weight * value) ** 2 for weight, value in zip(weights, drifts, strict=True))
    several = len(last) / max(len(last) - 1, 1)
    return mean, sqrt(max(among * several, _OF_DRIFT * around)) / whole


def _tamed(values: Sequence[float]) -> list[float]:
    """Winsorised values. Few are left unchanged."""
    if len(values) <= LEAST:
        return list(values)
    middle = median(values)
    most = _DEVIATIONS * _ROBUST * median(abs(value - middle) for value in values)
    return [min(max(value, middle - most), middle + most) for value in values]


def _part(work: Background) -> str:
    spent = dict(work.part_ns)
    if work.kind in _IN_PYTHON and spent["lock"] > 0:
        spent["lock"] += max(0, spent.pop("host"))
    part = max(spent, key=lambda name: spent[name])
    return part if spent[part] >= _HALF * sum(spent.values()) > 0 else ""
