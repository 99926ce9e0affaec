"""What a rule of advice is, and what it has to say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .case import Case

FLOOR = 0.02
"""A change that brings less than this share of the time is not advised."""
HERE = "yes"


@dataclass(frozen=True, slots=True)
class Gain:
    """What a change brings, in shares of the ranks' time."""

    share: float
    least: float
    most: float
    how: str
    """Where the number comes from: `replay`, or `formula`."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule says of a run."""

    change: str
    """What to do: one imperative sentence, with the setting."""
    gain: Gain
    evidence: tuple[str, ...]
    """What made it speak, with numbers."""
    settings: Mapping[str, int | float | str] = field(default_factory=dict)
    """The same for programs, such as {"num_workers": 8}."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table. The texts are those of docs/advice.md."""

    id: str
    """Family of rules and name, such as `data.workers`."""
    families: tuple[str, ...]
    """Families of causes that it is about."""
    when: str
    """When it speaks."""
    change: str
    gain: str
    """How the gain is computed."""
    check: str
    """How to see whether it helped."""
    find: Callable[[Case], Found | None]
    tested: str = HERE
    """`yes`, or why it could not be tried for real."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A rule that spoke, and what its change is worth."""

    id: str
    families: tuple[str, ...]
    change: str
    settings: Mapping[str, int | float | str]
    gain: Gain
    gpu_hours: float
    """Of those that the run has cost so far."""
    money: float | None
    """None: no price is known."""
    evidence: tuple[str, ...]
    check: str
    tested: bool
    """Whether the rule's prediction was compared with a real change."""
