"""The types of advice: a rule, what it finds in a run, and the resulting advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .case import Case

FULL = 0.5
"""Larger reads, and quicker first batches, are not advised if this share of the blocked time is at mounts that are at
their bandwidth."""
FLOOR = 0.02
"""A change that saves less than this share of the time is not advised."""
HERE, SIMULATED, NOT = "yes", "yes, on simulated devices", "no, it "
"""`Rule.tried` of a rule whose prediction was compared with a real change. NOT begins the reason why it was not."""


@dataclass(frozen=True, slots=True)
class Gain:
    """What a change saves, with a lower and an upper bound, in shares of the ranks' time."""

    share: float
    least: float
    most: float
    how: str
    """How the numbers were computed: `replay` or `formula`."""
    untold: bool = False
    """Whether it may as well be nothing, because it is not known what limits the loop."""

    @property
    def expected(self) -> float:
        """What to expect of it, beside other changes."""
        return self.share / 2 if self.untold else self.share


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule finds in a run."""

    change: str
    """What to do: one imperative sentence, with the setting."""
    gain: Gain
    evidence: tuple[str, ...]
    """Why the rule applies, with numbers."""
    settings: Mapping[str, int | float | str] = field(default_factory=dict)
    """The settings for programs, such as {"num_workers": 8}."""
    besides: float = 0.0
    """The share of the time that it may save beside what the rule removes. The upper bound includes it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table of rules. docs/advice.md shows its texts."""

    id: str
    """Topic and name, such as `data.workers`."""
    families: tuple[str, ...]
    """The families of causes that the change reduces."""
    when: str
    """When the rule applies."""
    change: str
    gain: str
    """How the gain is computed."""
    check: str
    """How to see whether it helped."""
    find: Callable[[Case], Found | None]
    tried: str = HERE
    """HERE, SIMULATED, or NOT and the reason why the prediction could not be compared with a real change."""
    removes: tuple[str, ...] | None = ()
    """The causes whose time it removes. Its gain is not more than their share. Empty: all causes of the families. None:
    the gain is itself the share of what the change removes."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A rule that applies to a run, and what its change is worth."""

    id: str
    families: tuple[str, ...]
    change: str
    settings: Mapping[str, int | float | str]
    gain: Gain
    gpu_hours: float
    """How many of the run's GPU-hours so far the change would have saved."""
    money: float | None
    """What these GPU-hours cost; None if no price is known."""
    evidence: tuple[str, ...]
    check: str
    tried: str
    """As in the rule."""

    @property
    def tested(self) -> bool:
        """Whether the rule's prediction was compared with a real change."""
        return not self.tried.startswith(NOT)
