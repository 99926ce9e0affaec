"""Predicts from replayed steps how much time a change saves, and how certain that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from ..statistics import RESAMPLES, Interval, block_length, of_draws
from .changes import NONE, Changes
from .replay import saved
from .trace import NoTrace, Trace

SWEEP_TIMES = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
FLAT = 0.9
"""A curve counts as flat from the point at which this share of the largest gain is reached."""
SINGLE = (
    Changes(network=NONE),
    Changes(no_stragglers=True),
    Changes(storage=NONE),
    Changes(balanced=True),
    Changes(cpu=NONE),
    Changes(host=NONE),
    Changes(async_save=True),
)
"""The answer to a question without changes: each loss removed alone."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a change saves, in shares of the time that steps take now."""

    share: float
    """The part of a step that is saved."""
    low: float
    high: float
    """`low` and `high` are the CONFIDENCE interval of `share` over other steps."""
    least: float
    """The lower bound: the smallest one of `low`, of what is saved if transfers are slow because ranks get no CPU or if
    a loop that saves in its own way cannot do so asynchronously, and of `share` less the error of looks at devices."""
    most: float
    """The upper bound: the largest one of `high`, of what is saved if partly hidden transfers and unsplit waits
    disappear, too, and of `share` plus that error."""


@dataclass(frozen=True, slots=True)
class Basis:
    """The recorded steps that predictions are made from."""

    trace: Trace
    walls: list[float]

    @classmethod
    def of(cls, trace: Trace) -> Basis:
        return cls(trace, trace.walls)

    @property
    def step_seconds(self) -> float:
        return sum(self.walls) / len(self.walls) / 1e9


def predict(basis: Basis, changes: Changes) -> Prediction:
    """What ``changes`` save. Raises NoTrace if the recorded steps do not show it."""
    if changes.workers and any(one.workers < 0 for one in basis.trace.ranks):
        raise NoTrace("the number of data workers is not known: --workers needs PyTorch's DataLoader")
    if changes.balanced and not any(slot.pairwise for one in basis.trace.ranks for slot in one.slots.values()):
        raise NoTrace("no rank waits for sends or receives: --pipeline needs a pipeline")
    surely = replace(changes.least(), async_save=changes.async_save and not basis.trace.own_saves)
    gains = saved(basis.trace, changes)
    low, high = interval(gains, basis.walls)
    replayed = sum(gains) / sum(basis.walls)
    least, most = (
        replayed if bound == changes else sum(saved(basis.trace, bound)) / sum(basis.walls)
        for bound in (surely, changes.most())
    )
    more = _late_ends(basis.trace, changes)
    most_more = _late_ends(basis.trace, changes.most())
    share, low, high = min(1.0, replayed + more), low + min(0.0, more), min(1.0, high + max(0.0, more))
    least, most = least + min(0.0, more), min(1.0, most + max(0.0, most_more))
    unsure = basis.trace.unsure * abs(changes.compute - changes.host)
    worst = replayed - unsure if replayed < 0 else max(0.0, replayed - unsure)
    low, high = min(low, share), max(high, share)
    return Prediction(share, low, high, min(low, least, worst), max(high, most, min(1.0, share + unsure)))


def _late_ends(trace: Trace, changes: Changes) -> float:
    """The share of the time that is saved where a transfer ends later on some ranks; negative for a slower network.
    It is not known in which group."""
    groups = {slot.key for one in trace.ranks for slot in one.slots.values()}
    every = not changes.groups or groups <= {*changes.groups}
    return trace.late_ends * (1 - changes.network) if every else 0.0


def interval(gains: Sequence[float], walls: Sequence[float]) -> Interval:
    """The CONFIDENCE interval of the ratio of two means, by a circular block bootstrap (Politis and Romano, 1992).

    Whole blocks of steps are drawn, because neighbouring steps are alike.
    """
    count = len(gains)
    length = block_length(count)
    random = Random(0)
    sums = [
        (
            sum(gains[(start + offset) % count] for offset in range(length)),
            sum(walls[(start + offset) % count] for offset in range(length)),
        )
        for start in range(count)
    ]
    drawn = []
    for _ in range(RESAMPLES):
        blocks = random.choices(sums, k=max(1, count // length))
        drawn.append(sum(gain for gain, _ in blocks) / sum(wall for _, wall in blocks))
    return of_draws(drawn)


def each_alone(basis: Basis) -> list[tuple[Changes, Prediction]]:
    """What removing each loss alone would save, the largest first."""
    pipeline = any(slot.pairwise for one in basis.trace.ranks for slot in one.slots.values())
    found = [(changes, predict(basis, changes)) for changes in SINGLE if pipeline or not changes.balanced]
    return sorted(found, key=lambda entry: -entry[1].share)


def sweep(basis: Basis, changes: Changes) -> Iterator[tuple[float, Prediction]]:
    """Yields (factor, prediction) for the changed factors over SWEEP_TIMES and `none`, with the other changes kept."""
    names = [*changes.scaled]
    for value in (*(1 / times for times in SWEEP_TIMES), NONE):
        yield value, predict(basis, replace(changes, **dict.fromkeys(names, value)))


def flat_from(curve: Sequence[tuple[float, Prediction]]) -> float:
    """The factor from which the curve is flat (see FLAT)."""
    whole = curve[-1][1].share
    return next(value for value, found in curve if found.share >= FLAT * whole)
