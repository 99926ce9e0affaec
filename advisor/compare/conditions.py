"""Conditions on a comparison, such as `network>+5%`, that let a CI pipeline fail. Pure functions.

    NAME > LIMIT    or    NAME < LIMIT

NAME is a measure or a family. A LIMIT with a sign is a change from the first run (`+5%`, `-10%`, `+20ms`). A LIMIT
without a sign is a value (`250ms`, `1.5s`). The LIMIT of `efficiency` is a percentage (`efficiency<80%`). The LIMIT of
`speedup`, which compares seconds per step, is a plain number (`speedup<1.5`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .comparison import UNTOLD, Comparison, Pair, Row
from .measures import NAMES

SPEEDUP, EFFICIENCY = "speedup", "efficiency"
ALL_NAMES = (*NAMES, SPEEDUP, EFFICIENCY)
_FORM = re.compile(r"\s*([a-z0-9-]+)\s*([<>])\s*([+-]?)([0-9]+(?:\.[0-9]+)?)\s*(%|ms|s|)\s*")
_UNITS = {"ms": 1e-3, "s": 1.0, "%": 1e-2, "": 1.0}


class NoCondition(ValueError):
    """The text is not a condition. The message is a sentence without its full stop."""


class NotKnown(ValueError):
    """The reports lack what a condition asks for. The message is a sentence without its full stop."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that was parsed."""

    text: str
    name: str
    above: bool
    """True if the condition is met above the limit, False if below."""
    change: bool
    """Whether the limit is a change from the first run."""
    relative: bool
    """Whether that change is relative, in percent."""
    limit: float
    """Seconds or a ratio."""

    def beyond(self, value: float) -> bool:
        return value > self.limit if self.above else value < self.limit


@dataclass(frozen=True, slots=True)
class Judged:
    """A condition applied to one run."""

    condition: str
    run: str
    met: bool
    value: float
    """The value that was compared with the limit."""
    untold: bool
    """Whether the value is beyond the limit, but the difference may be chance, so that the condition is not met."""


def parse(text: str) -> Condition:
    """Parses a condition. Raises NoCondition."""
    found = _FORM.fullmatch(text)
    if not found:
        raise NoCondition(
            f"{text!r} is not a condition: write NAME>LIMIT or NAME<LIMIT, such as network>+5% or step>250ms"
        )
    name, sense, sign, digits, unit = found.groups()
    if name not in ALL_NAMES:
        raise NoCondition(f"{text!r}: {name} is not a measure or a family: choose from {', '.join(ALL_NAMES)}")
    if name == SPEEDUP and (sign or unit):
        raise NoCondition(f"{text!r}: a speed-up must be a plain number, such as speedup<1.5")
    if name == EFFICIENCY and (sign or unit != "%"):
        raise NoCondition(f"{text!r}: an efficiency must be a percentage without a sign, such as efficiency<80%")
    if name not in (SPEEDUP, EFFICIENCY) and (not unit or (unit == "%" and not sign)):
        raise NoCondition(f"{text!r}: give a change such as +5% or +20ms, or a value such as 250ms")
    limit = float(digits) * _UNITS[unit] * (-1 if sign == "-" else 1)
    return Condition(text.strip(), name, sense == ">", bool(sign), unit == "%" and bool(sign), limit)


def judge(condition: Condition, comparison: Comparison, *, values_alone: bool = False) -> list[Judged]:
    """Applies a condition to each run except the first. Raises NotKnown.

    A condition on a change is not met if the difference may be chance, unless ``values_alone`` is set. A condition on a
    value ignores the interval.
    """
    if condition.name == EFFICIENCY:
        return [*_efficiencies(condition, comparison)]
    found = []
    for pair in comparison.pairs:
        row = _row(condition, pair)
        value = _value(condition, row, pair.name)
        beyond = condition.beyond(value)
        untold = beyond and condition.change and row.finding == UNTOLD and not values_alone
        found.append(Judged(condition.text, pair.name, beyond and not untold, value, untold))
    return found


def _row(condition: Condition, pair: Pair) -> Row:
    if condition.name == SPEEDUP:
        return pair.whole
    for row in (*pair.rows, *pair.families):
        if row.name == condition.name:
            return row
    return Row(condition.name, condition.name, "", 0.0, 0.0, difference=0.0)  # a family that neither run has


def _value(condition: Condition, row: Row, name: str) -> float:
    if row.after is None or (row.before is None and (condition.change or condition.name == SPEEDUP)):
        raise NotKnown(f"{condition.text}: {row.label} is not known for both {name} and the first run")
    if condition.name == SPEEDUP:
        return row.speedup or 0.0
    if not condition.change:
        return row.after
    assert row.difference is not None
    if not condition.relative:
        return row.difference
    if row.before:
        return row.difference / row.before
    return float("inf") if row.difference > 0 else 0.0


def _efficiencies(condition: Condition, comparison: Comparison) -> Iterator[Judged]:
    if not comparison.scaling:
        raise NotKnown(f"{condition.text}: all runs have the same world size, so there is no scaling to check")
    for entry in comparison.scaling:
        if entry.is_reference:
            continue
        yield Judged(condition.text, entry.name, condition.beyond(entry.efficiency), entry.efficiency, False)
