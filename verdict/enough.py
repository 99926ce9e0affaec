"""Whether a run is long enough for a verdict. Pure functions over accounts.

A run must have a number of steps and seconds, and the shares of its time must be known well enough: their standard
error must be below a limit. The error comes from the steps that the ledgers still have, by batch means: the steps are
cut into blocks, and the share of a block in time varies less, the longer a block is. So a steady loop is judged after
the least number of steps, and one with rare, long saves only after four of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..ledger.causes import CAUSE_FAMILY, CAUSES, FAMILIES, FAMILY, WAIT_CAUSES
from .accounts import RunAccount
from .case import VERDICT_SHARE
from .ends import counted

FEWEST_BLOCKS, BLOCKS = 4, 10
"""The steps are cut into BLOCKS blocks, or into single steps. With fewer than FEWEST_BLOCKS steps in the ledgers,
nothing is known about how the shares vary."""
EVEN = 0.25
"""Fewer blocks count if the error is at most this part with them. Where each epoch begins with a long wait, ten blocks
of seven epochs vary, although the loop does not: seven of them have a wait. In runs with long waits at random times,
this judges three more of a hundred whose true error is 0.1."""
MOST_RANKS = 64
"""The steps of at most this many ranks are looked at, evenly among all."""

_WAITS = len(FAMILIES)
_PARTS: tuple[int, ...] = tuple(
    _WAITS if cause in WAIT_CAUSES else FAMILIES.index(CAUSE_FAMILY[cause]) for cause in CAUSES
)
"""Cause -> the part of a step that it belongs to: its family, or all waits. A ring does not tell waits apart."""


class BadLimit(ValueError):
    """A limit in the environment is not a number from 0. The message is a sentence without its full stop."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run needs for a verdict and for advice."""

    steps: int = 20
    seconds: float = 5.0
    """From the first step on, on the rank that has most."""
    spread: float = 0.05
    """The largest standard error that a share may have."""


NO_LIMITS = Limits(0, 0.0, math.inf)
VARIABLES: Mapping[str, str] = {
    "steps": "WHYIDLE_LEAST_STEPS",
    "seconds": "WHYIDLE_LEAST_SECONDS",
    "spread": "WHYIDLE_MOST_SPREAD",
}
"""Field of Limits -> the environment variable that sets it."""


def limits(environment: Mapping[str, str] | None = None) -> Limits:
    """The limits that the environment sets, and the defaults of the others. Raises BadLimit."""
    given = os.environ if environment is None else environment
    known = Limits()
    found = {name: _number(variable, given[variable]) for name, variable in VARIABLES.items() if given.get(variable)}
    return Limits(
        int(found.get("steps", known.steps)), found.get("seconds", known.seconds), found.get("spread", known.spread)
    )


def _number(variable: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number >= 0 or (variable == VARIABLES["steps"] and not number.is_integer()):
        raise BadLimit(f"{variable} must be a {'whole ' * (variable == VARIABLES['steps'])}number from 0, not {text!r}")
    return number


@dataclass(frozen=True, slots=True)
class TooShort:
    """Why there is no verdict on a run."""

    steps: int
    """The most of any rank."""
    seconds: float
    """From the first step on, on the rank that has most."""
    spread: float | None
    """The standard error of the share that is known least; None if the ledgers have too few steps to know it."""
    first: float | None
    """The share of the first step in these seconds, if without it another family would lead; otherwise None."""
    limits: Limits

    @property
    def sentence(self) -> str:
        """`too short to judge: 10 steps in 0.2 s`."""
        said = f"too short to judge: {counted(self.steps, 'step')} in {self.seconds:.1f} s"
        if self.steps < self.limits.steps or self.seconds < self.limits.seconds:
            return said
        if self.first is not None:
            return f"{said}, and the first step took {100 * self.first:.0f} % of them"
        return f"{said}, and the shares still vary by {100 * (self.spread or 0.0):.0f} points"

    @property
    def entry(self) -> dict[str, object]:
        """As JSON."""
        return {
            "steps": self.steps,
            "seconds": self.seconds,
            "spread": self.spread,
            "first_step_share": self.first,
            "least_steps": self.limits.steps,
            "least_seconds": self.limits.seconds,
            "most_spread": self.limits.spread if math.isfinite(self.limits.spread) else None,
            "sentence": self.sentence,
        }


def too_short(account: RunAccount, least: Limits | None = None) -> TooShort | None:
    """Why a run cannot be judged yet; None if it can, or if no rank has begun its first step.

    A run in which ranks wait for a rank that does not come is judged at once.
    ``least``: without it, the limits of the environment. Raises BadLimit.
    """
    least = limits() if least is None else least
    if account.rank_seconds <= 0 or account.missing or account.unentered or account.apart:
        return None
    steps = max(rank.steps for rank in account.ranks)
    seconds = max(rank.wall for rank in account.ranks)
    parts = _steps(account)
    later = parts[1:] if parts and parts[0].first else parts
    made = max(rank.newest.steps for rank in account.ranks)
    error = _spread(later) * math.sqrt(len(later) / made) if len(later) >= FEWEST_BLOCKS else None
    first = _first(parts, later)
    short = steps < least.steps or seconds < least.seconds or (error or 0.0) > least.spread
    if not short and (first is None or not math.isfinite(least.spread)):
        return None
    return TooShort(steps, seconds, error, first, least)


@dataclass(slots=True)
class _Step:
    """One step of all ranks together, ns."""

    wall: int
    spent: list[int]
    """By part: see _PARTS."""
    first: bool


def _steps(account: RunAccount) -> list[_Step]:
    """The steps that the ledgers of all ranks still have, oldest first. At most MOST_RANKS ranks."""
    newest = [rank.newest for rank in account.ranks if rank.newest.ring]
    attempts = {ledger.attempt for ledger in newest}
    chosen = newest[:: max(1, math.ceil(len(newest) / MOST_RANKS))]
    if len(attempts) != 1:
        return []
    rings = [{step.number: step for step in ledger.ring} for ledger in chosen]
    first = chosen[0].base_step + 1
    found = []
    for number in sorted(set(rings[0]).intersection(*rings[1:])):
        spent = [0] * (_WAITS + 1)
        for ring in rings:
            for part, ns in zip(_PARTS, ring[number].causes, strict=True):
                spent[part] += ns
        found.append(_Step(sum(ring[number].wall_ns for ring in rings), spent, number == first))
    return found


def _spread(steps: Sequence[_Step]) -> float:
    """The largest standard error of the share of a part, by batch means.

    A share is a ratio of two sums over blocks, and its error that of a ratio estimate (Cochran, Sampling Techniques,
    1977, section 6.4).
    """
    error = _error(steps, min(BLOCKS, len(steps)))
    fewer = [_error(steps, count) for count in range(FEWEST_BLOCKS, min(BLOCKS, len(steps)))]
    return min([error, *(one for one in fewer if one <= EVEN * error)])


def _error(steps: Sequence[_Step], count: int) -> float:
    """The same, from this many blocks."""
    edges = [round(len(steps) * at / count) for at in range(count + 1)]
    blocks = [steps[begin:end] for begin, end in pairwise(edges)]
    walls = [sum(step.wall for step in block) for block in blocks]
    whole = sum(walls)
    if whole <= 0:
        return 0.0
    worst = 0.0
    for part in range(_WAITS + 1):
        spent = [sum(step.spent[part] for step in block) for block in blocks]
        share = sum(spent) / whole
        off = sum((own - share * wall) ** 2 for own, wall in zip(spent, walls, strict=True))
        worst = max(worst, math.sqrt(off * count / (count - 1)) / whole)
    return worst


def _first(steps: Sequence[_Step], later: Sequence[_Step]) -> float | None:
    """The share of the first step in the time, if it is large and another part leads without it."""
    whole = sum(step.wall for step in steps)
    if not later or len(later) == len(steps) or steps[0].wall < VERDICT_SHARE * whole:
        return None
    return steps[0].wall / whole if _leading(steps) != _leading(later) else None


def _leading(steps: Sequence[_Step]) -> int:
    """The part that would be the verdict."""
    sums = [sum(step.spent[part] for step in steps) for part in range(_WAITS + 1)]
    most = max(range(1, _WAITS + 1), key=lambda part: sums[part])
    return most if sums[most] >= VERDICT_SHARE * sum(step.wall for step in steps) else FAMILY["compute"]
