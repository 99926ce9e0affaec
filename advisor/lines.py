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
    if not attempts:
        return []
    kept = _kept(attempts)
    return [max(0, one.end - max(one.base + one.repeated, kept.get(at, 0))) for at, one in enumerate(attempts)]


def _kept(attempts: Sequence[Stretch]) -> dict[int, int]:
    """Up to which step attempts lead to the newest one. Those that do not are left out.

    What was lost in a crash was repeated, and leads on. Only a branch cuts a line.
    """
    places = {one.number: at for at, one in enumerate(attempts)}
    place, limit = len(attempts) - 1, max(one.end for one in attempts)
    kept = {place: limit}
    while place > 0:
        parent = place - 1
        if attempts[place].beginning == BRANCH:
            limit = min(limit, attempts[place].base)
            parent = min(parent, places.get(attempts[place].parent, parent))
        place = parent
        kept[place] = limit
    return kept
