"""The lines of a run: which steps of its attempts lead to the newest one, and which a branch has left. Pure functions.

An attempt goes on from a checkpoint of an earlier one. If somebody has chosen an older checkpoint and has changed the
command, the attempt is a branch: the steps after that checkpoint are not repeated, and nothing leads on from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..ledger.layout import BEGINNINGS, BRANCHED

BRANCH = BEGINNINGS[BRANCHED]


class Stretch(NamedTuple):
    """The steps of one attempt."""

    number: int
    base: int
    """The step from which it goes on."""
    steps: int
    repeated: int
    """How many of them an earlier attempt had finished."""
    parent: int
    """The attempt whose checkpoint it has restored; -1 if that is not known."""
    beginning: str
    """One of BEGINNINGS."""

    @property
    def end(self) -> int:
        return self.base + self.steps


def branched_off(attempts: Sequence[Stretch]) -> list[int]:
    """For each attempt, how many of its new steps a later branch has left. The attempts must be in order."""
    kept = [_kept(attempts, place) for place in range(len(attempts))]
    return [_left(attempts, place, kept) for place in range(len(attempts))]


def _left(attempts: Sequence[Stretch], place: int, kept: Sequence[dict[int, int]]) -> int:
    one, left = attempts[place], 0
    top, least = one.end, max(one.base + one.repeated, kept[-1].get(place, -1))
    for later in range(place + 1, len(attempts)):
        reached = max(least, kept[later].get(place, -1))
        if reached < top:
            left += (top - reached) * (attempts[later].beginning == BRANCH)
            top = reached
    return left


def _kept(attempts: Sequence[Stretch], place: int) -> dict[int, int]:
    """Up to which step an attempt and those before it lead to this one. Attempts that do not are left out."""
    kept = {place: attempts[place].end}
    places = {one.number: at for at, one in enumerate(attempts)}
    while place > 0:
        parent = places.get(attempts[place].parent, place - 1)
        before = parent if parent < place else place - 1
        kept[before] = min(attempts[place].base, attempts[before].end)
        place = before
    return kept
