"""What a change brings: from a replay of the recorded steps where there is one, else from the account."""

from __future__ import annotations

from ..whatif.changes import Changes
from .case import Case
from .rule import Gain


def replayed(case: Case, changes: Changes) -> Gain | None:
    """None where the steps of the run cannot be replayed."""
    found = case.predict(changes)
    return None if found is None else Gain(found.share, max(0.0, found.least), found.most, "replay")


def without(case: Case, *causes: str) -> Gain:
    """Of causes of own time that are gone.

    Without a replay: their share of all ranks' time. A run in which others wait for the rank that has them gains as
    much as that rank has, and one in which that rank waits for others gains nothing.
    """
    if found := replayed(case, Changes(causes=causes)):
        return found
    most = max(sum(rank.seconds[cause] for cause in causes) / rank.wall for rank in case.ranks if rank.wall > 0)
    return Gain(case.share(*causes), 0.0, most, "formula")


def formula(share: float, least: float = 0.0, most: float | None = None) -> Gain:
    return Gain(share, least, share if most is None else most, "formula")


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"
