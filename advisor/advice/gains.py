"""The gain of a change: from a replay of the recorded steps if possible, otherwise from the account."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...verdict.sampled import is_sampled
from ..whatif.changes import Changes
from .case import Case
from .rule import FLOOR, Gain

ENOUGH = 0.9
"""The advice is the smallest setting that reaches this share of the largest gain, or covers this share of the waits."""


def replayed(case: Case, changes: Changes) -> Gain | None:
    """The gain by a replay. None if the steps of the run cannot be replayed."""
    found = case.predict(changes)
    return None if found is None else Gain(found.share, max(0.0, found.least), found.most, "replay")


def fewest_workers(case: Case, numbers: Iterable[int]) -> int | None:
    """The smallest of these numbers of additional data workers that reaches most of the largest gain. None if that is
    too small for advice. ``numbers``: in ascending order."""
    tried = {more: case.saves(Changes(workers=more)) for more in numbers}
    best = max(tried.values(), default=0.0)
    return None if best < FLOOR else next(more for more, share in tried.items() if share >= ENOUGH * best)


def without(case: Case, *causes: str) -> Gain:
    """The gain if some causes of own time disappear.

    Without a replay it is their share of the time of all ranks. The upper bound is the largest share of any rank, for
    the case that the others wait for that rank. The lower bound is 0, for the case that it waits for the others.
    A replay does not know what looks found in the loop's own time.
    """
    if not is_sampled(case.ranks, *causes) and (found := replayed(case, Changes(causes=causes))):
        return found
    most = max(sum(rank.seconds[cause] for cause in causes) / rank.wall for rank in case.ranks if rank.wall > 0)
    return Gain(case.share(*causes), 0.0, most, "formula")


def formula(share: float, least: float = 0.0, most: float | None = None) -> Gain:
    """A gain that was computed without a replay. ``most`` is ``share`` unless given."""
    return Gain(share, least, share if most is None else most, "formula")


def untold(gain: Gain) -> Gain:
    """A gain that may also be nothing."""
    return replace(gain, least=0.0, untold=True)


def at_most(gain: Gain, share: float) -> Gain:
    """A gain that is not more than the share of what the change removes."""
    return replace(gain, share=min(gain.share, share), least=min(gain.least, share), most=min(gain.most, share))


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"
