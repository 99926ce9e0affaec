"""What a change can bring at most, where no recorded steps are there to replay. Pure functions.

Known of each rank are its seconds by cause, from its first step on. Nobody knows then in which steps they lay, or what
hides behind what: a bound is all that they tell.

* A rank's own time that a change does not touch has to be spent in any case. So no rank gains more than what the change
  takes of its own time, and all of its waits for other ranks.
* Ranks that meet in collectives make their steps together: what one of them gains at most, all gain at most.
* What only ran faster by a factor K cannot make a step shorter than 1/K of what it was (Amdahl 1967, "Validity of the
  single processor approach to achieving large scale computing capabilities").
* At least nothing is gained: something else may have been hidden behind what is faster now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...ledger.causes import CAUSES, WAIT_CAUSES
from .answer import apart, options_of
from .changes import NONE, Changes, written
from .own import factors_of
from .predict import FLAT, SINGLE, SWEEP_TIMES

_DATA = ("data_read", "data_cpu", "data_queue", "data_handoff")
"""The wait for the batch. The loader works beside the loop: if a part of its work is faster, the whole wait may be
gone."""
_TRANSFERS = ("network", "collective_queue")
_WAITS = ("straggler", "pipeline", "collective")
"""Waits for other ranks, and those that nobody could split."""

Seconds = Mapping[str, float]


class NoBounds(ValueError):
    """Nothing can be said of a change. A sentence without its full stop."""


@dataclass(frozen=True)
class Spent:
    """What the ranks of a run spent. Seconds by cause of each rank, from its first step on."""

    ranks: Sequence[Seconds]
    steps: int
    missing: int = 0
    """Ranks of the run of which nothing is known."""

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
        """Whether all ranks wait for others, and so make their steps together."""
        return all(any(one.get(cause, 0.0) > 0 for cause in WAIT_CAUSES) for one in self.ranks)


def _whole(one: Seconds) -> float:
    return sum(one.values())


def most(spent: Spent, changes: Changes) -> float:
    """The share of a step that changes save at most. Raises NoBounds."""
    _check(spent, changes)
    factors = _factors(spent, changes)
    gains = [
        (sum(one.get(cause, 0.0) * (1 - factor) for cause, factor in factors.items()) + _waited(one)) / _whole(one)
        for one in spent.ranks
    ]
    mean = sum(gains) / len(gains)
    if changes.no_stragglers:
        # In each step, half of the ranks or more are not late, and gain what any rank can gain.
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
    """By cause, how little of its time may be left."""
    factors = dict(zip(CAUSES, factors_of(changes), strict=True))
    if changes.storage < 1 or changes.cpu < 1:
        factors |= dict.fromkeys(_DATA, NONE)
    if changes.network < 1 or (changes.cpu < 1 and spent.has("collective_queue")):
        factors |= dict.fromkeys(_TRANSFERS, NONE)
    return factors


def answer(spent: Spent, changes: Changes, *, swept: bool = False) -> dict[str, Any]:
    """The bounds of each change alone and of all together, or, without any, of each loss alone. Raises NoBounds."""
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
