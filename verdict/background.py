"""What background work costs the steps beside it, and how. Pure functions over what ranks have summed up.

`ledger/beside.py` has the sums, and why their quotient is a slope: what the rate of steps changes by if a work begins.
A single stretch of work may be a coincidence, so there have to be several. What noise may be is known from the pairs of
blocks themselves. Few pairs with a large change count as few (Kish's effective number), by Student's t.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import NamedTuple

from ..ledger.background import PARTS, Background
from ..ledger.reader import Ledger

STRETCHES = 3
"""A work that has come once or twice may have come by chance when steps were slow."""
LEAST = 6
"""As how many pairs of blocks the changes have to count. A stretch of work has two: its begin and its end."""
SLOWER = 0.03
"""Steps have to lose at least this part of their time."""
SHARE = 0.005
"""A report mentions background work from this share of a rank's time on."""
_QUANTILES = (5.89, 5.21, 4.79, 4.50, 4.30, 4.14, 4.02, 3.93)
"""Student's t for 5, 6, ... degrees of freedom, one-sided, at 0.1 %."""
_CAREFUL = 1.2
"""By how much errors are enlarged: changes are few, and noise has no normal distribution."""
_HALF = 0.5
_SLOWEST = 0.01
"""Of the usual rate: an estimate of the rate beside a work may be below 0."""

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
    """None if no steps beside the work can be compared with others."""
    window, found = ledger.until_ns - ledger.window_ns, estimate_of(work)
    if found is None or window <= 0 or not work.step_ns:
        return None
    beside_ns, slower = work.worked_ns / work.most, 1 - found.beside / found.usual
    worked = beside_ns / window
    return Cost(
        ledger.rank,
        work.kind,
        work.name,
        work.stretches,
        found.beside * beside_ns / work.step_ns,
        slower,
        slower * worked,
        found.error / found.usual * worked,
        _part(work, found),
        work.stretches >= STRETCHES
        and found.pairs >= LEAST
        and slower >= SLOWER
        and found.usual - found.beside > needed(found.pairs) * found.error,
    )


class Estimate(NamedTuple):
    """Rates are in steps per time of a usual step."""

    usual: float
    beside: float
    """The rate where the work works most."""
    error: float
    """The standard error of their difference."""
    pairs: float
    """As how many pairs of blocks with the same change the sums count."""


def estimate_of(work: Background) -> Estimate | None:
    """None if nothing can be compared."""
    sums, squares = work.sums, work.sums["squares"]
    if squares <= 0 or sums["noise_square"] <= 0 or work.most <= 0:
        return None
    slope, usual = _line(sums, "rate")
    if usual <= 0:
        return None
    noise = sums["noise"] - 2 * slope * sums["noise_slope"] + slope**2 * sums["noise_square"]
    following = sums["next_noise"] - slope * sums["next_slope"] + slope**2 * sums["next_square"]
    pairs = squares**2 / sums["noise_square"]
    variance = max(0.0, noise) + 2 * max(0.0, following)
    error = sqrt(variance * pairs / max(pairs - 1, _HALF)) / squares
    beside = max(usual + work.most * slope, _SLOWEST * usual)
    return Estimate(usual, beside, _CAREFUL * work.most * error, pairs)


def needed(pairs: float) -> float:
    """How many standard errors the slope has to differ from 0."""
    return _QUANTILES[max(0, min(int(pairs) - LEAST, len(_QUANTILES) - 1))]


def _line(sums: Mapping[str, float], name: str) -> tuple[float, float]:
    """The slope of a rate, and its value without the work."""
    slope = sums[f"{name}_change"] / sums["squares"]
    return slope, (sums[f"{name}_level"] - slope * sums["level"]) / sums["squares"]


def _part(work: Background, found: Estimate) -> str:
    """The part that has most of what each step takes longer; empty if none has half of it."""
    longer = {}
    for part in PARTS:
        slope, usual = _line(work.sums, part)
        longer[part] = (usual + work.most * slope) / found.beside - usual / found.usual
    if work.kind in _IN_PYTHON and longer["lock"] > 0:
        longer["lock"] += max(0.0, longer.pop("host"))
    part = max(longer, key=lambda name: longer[name])
    return part if longer[part] >= _HALF * sum(longer.values()) > 0 else ""
