"""Bounds on what a change can save, for a run without recorded steps to replay. Pure functions.

For each rank only the seconds by cause are known, from its first step on. They do not show in which steps the seconds
were, or what was hidden behind what, so they give bounds and no prediction.

* A rank's own time that a change does not affect must be spent in any case. So a rank saves at most what the change
  takes off its own time, plus all its waits for other ranks.
* Ranks that meet in collectives make their steps together: no rank can save more than the one that can save least.
* If parts of a step become K times faster, the step does not become shorter than 1/K (Amdahl 1967, "Validity of the
  single processor approach to achieving large scale computing capabilities").
* The lower bound is 0: something else may have been hidden behind the part that is faster now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...ledger.cause_rows import CAUSE_ROWS
from ...ledger.causes import CAUSES, WAIT_CAUSES
from .answer import apart, options_of
from .changes import NONE, Changes, written
from .own import factors_of
from .predict import FLAT, SINGLE, SWEEP_TIMES

_DATA = tuple(row.name for row in CAUSE_ROWS if row.place == "data")
"""The wait for a batch. The loader works in parallel to the loop, so the whole wait may disappear if a part of the
loader's work becomes faster."""
_TRANSFERS = ("network", "collective_queue")
_WAITS = ("straggler", "pipeline", "collective")
"""Waits for other ranks, and unsplit waits."""

Seconds = Mapping[str, float]


class NoBounds(ValueError):
    """There are no bounds for a change. The message is a sentence without its full stop."""


@dataclass(frozen=True)
class Spent:
    """Where the time of a run's ranks went."""

    ranks: Sequence[Seconds]
    """For each rank, the seconds by cause from its first step on."""
    steps: int
    missing: int = 0
    """The number of ranks about which nothing is known."""

    @property
    def whole(self) -> float:
        return sum(_whole(one) for one in self.ranks)

    @property
    def step_seconds(self) -> float:
        return self.whole / len(self.ranks) / self.steps

    def has(self, cause: str) -> bool:
        return any(one.get(cause, 0.0) > 0 for one in self.ranks)

    @property
    def meet(self) -> bool:
        """Whether all ranks wait for others, and therefore make their steps together."""
        return all(any(one.get(cause, 0.0) > 0 for cause in WAIT_CAUSES) for one in self.ranks)


def _whole(one: Seconds) -> float:
    return sum(one.values())


def most(spent: Spent, changes: Changes) -> float:
    """The largest share of a step that changes can save. Raises NoBounds."""
    _check(spent, changes)
    factors = _factors(spent, changes)
    gains = [
        (sum(one.get(cause, 0.0) * (1 - factor) for cause, factor in factors.items()) + _waited(one)) / _whole(one)
        for one in spent.ranks
    ]
    mean = sum(gains) / len(gains)
    if changes.no_stragglers:
        # In each step at least half of the ranks are not late, and these save what any rank can save.
        return min(1.0, 2 * mean)
    return min(mean, 1 - min(_scaled(changes)), *(gains if spent.meet else ()))


def _waited(one: Seconds) -> float:
    return sum(one.get(cause, 0.0) for cause in _WAITS)


def _scaled(changes: Changes) -> list[float]:
    factors = [getattr(changes, name) for name in changes.scaled]
    return [*factors, *([NONE] if changes.async_save or not factors else [])]


def _check(spent: Spent, changes: Changes) -> None:
    if changes.workers:
        raise NoBounds("only ledgers have the number of data workers: --workers needs them, see --dir")
    if changes.balanced:
        raise NoBounds("only ledgers show which ranks form a pipeline stage: --pipeline needs them, see --dir")
    if any(factor > 1 for factor in _scaled(changes)):
        raise NoBounds("without recorded steps, bounds exist only for what becomes faster: factors must be above 1")
    if spent.missing and changes.no_stragglers:
        raise NoBounds(f"{spent.missing} ranks were not seen: --straggler compares all ranks with one another")


def _factors(spent: Spent, changes: Changes) -> dict[str, float]:
    """Cause -> the smallest part of its time that may be left."""
    factors = dict(zip(CAUSES, factors_of(changes), strict=True))
    if changes.storage < 1 or changes.cpu < 1:
        factors |= dict.fromkeys(_DATA, NONE)
    if changes.network < 1 or (changes.cpu < 1 and spent.has("collective_queue")):
        factors |= dict.fromkeys(_TRANSFERS, NONE)
    if changes.async_save:
        factors["checkpoint_cpu"] = NONE  # the loop may save in its own way
    return factors


def answer(spent: Spent, changes: Changes, *, swept: bool = False) -> dict[str, Any]:
    """The bounds of each change alone and of all together. Without any change, those of removing each loss alone.
    Raises NoBounds."""
    alone = apart(changes) or _each_alone(spent)
    rows = [_entry(spent, each) for each in alone]
    if not changes.any:
        rows.sort(key=lambda row: -float(row["most"]))
    return {
        "ranks": len(spent.ranks),
        "steps": spent.steps,
        "step_seconds": spent.step_seconds,
        "changes": rows,
        "together": _entry(spent, changes) if changes.any and len(alone) > 1 else None,
        "sweep": _sweep(spent, changes) if swept else None,
    }


def _each_alone(spent: Spent) -> list[Changes]:
    possible = []
    for changes in SINGLE:
        try:
            most(spent, changes)
        except NoBounds:
            continue
        possible.append(changes)
    return possible


def _entry(spent: Spent, changes: Changes) -> dict[str, Any]:
    share = most(spent, changes)
    return {
        "options": options_of(changes),
        "step_seconds": (1 - share) * spent.step_seconds,
        "least": 0.0,
        "most": share,
    }


def _sweep(spent: Spent, changes: Changes) -> dict[str, Any]:
    names = [*changes.scaled] or ["network"]
    points = [
        {"factor": written(value), "most": most(spent, replace(changes, **dict.fromkeys(names, value)))}
        for value in (*(1 / times for times in SWEEP_TIMES), NONE)
    ]
    last = points[-1]["most"]
    return {
        "options": [f"--{name}" for name in names],
        "points": points,
        "flat_from": next(point["factor"] for point in points if point["most"] >= FLAT * last) if last > 0 else None,
    }
