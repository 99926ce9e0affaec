"""Startups and restores of a run between two moments, from counters that Prometheus scraped. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

STARTING: tuple[str, ...] = ("startup", "restore")
"""The phases in which a rank has not made its first step yet."""
HALF = "a rank is starting at the {} of this time, so startup, restore and end to end are not known"
FORGOTTEN = "what ranks had counted before this time was not recorded, so startup, restore and end to end are not known"


class Counter(NamedTuple):
    """A counter of one rank at both moments."""

    before: float | None
    """None if the rank was not scraped shortly before the first moment."""
    after: float

    def grown(self, new: bool) -> float | None:
        """None if not known. ``new``: whether the rank had counted nothing before it was first scraped."""
        if self.before is None:
            return self.after if new else None
        # An agent that was restarted may have begun at 0.
        return self.after - self.before if self.after >= self.before else self.after


@dataclass(frozen=True)
class RankStarts:
    """One rank: the attempts that began between the two moments, and its counters."""

    attempts: Collection[int]
    startup: Counter
    """Seconds of the cause `startup`."""
    reading: Counter
    """Seconds of the cause `checkpoint_read`."""
    loads: Counter
    """The number of restores."""

    def grown(self) -> tuple[float, float, float] | None:
        """Seconds of startup, seconds of restores, and restores. None if not known."""
        new = not self.attempts or min(self.attempts) == 0
        startup, reading, loads = (one.grown(new) for one in (self.startup, self.reading, self.loads))
        return None if startup is None or reading is None or loads is None else (startup, reading, loads)


@dataclass(frozen=True)
class Starts:
    """What is known of the startups and restores of a run in this time. Times in seconds."""

    startup: float | None = None
    """One startup with its restore, of the rank with the longest. None if no attempt began, or if it is not known."""
    restores: int = 0
    restoring: float = 0.0
    """All restores, of the rank that they blocked longest."""
    why_not: str = ""


def starts_of(ranks: Mapping[int, RankStarts], starting: tuple[bool, bool] = (False, False)) -> Starts:
    """``starting``: whether a rank was in its startup at the first and at the last moment."""
    for at, where in zip(starting, ("beginning", "end"), strict=True):
        if at:
            return Starts(why_not=HALF.format(where))
    found = [(len(one.attempts), one.grown()) for one in ranks.values()]
    if any(grown is None for _, grown in found):
        return Starts(why_not=FORGOTTEN)
    known = [(starts, *grown) for starts, grown in found if grown is not None]
    startups = [(startup + reading) / starts for starts, startup, reading, _ in known if starts and startup > 0]
    return Starts(
        max(startups, default=None),
        round(max((loads for *_, loads in known), default=0)),
        max((reading for _, _, reading, _ in known), default=0.0),
    )
