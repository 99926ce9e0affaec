"""What the ranks tell each other about shares, and from which call on they use the answer. Pure functions and state.

A *call* is the number of a call of `whyidle.share`. All ranks make the same calls, so it names the same step on all.
In each round, every rank sends some words, of which the ranks take the minimum. From the result, all conclude the same
plan, and the same call from which it holds: MARGIN_NS and at least LEAST_MARGIN calls after the newest call that any
rank had made. A rank that gets a result later than that says so in the next round, and shares become equal for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from ...ledger.waits import NOTHING
from .plan import EQUAL, Pace, Plan, decide

DOUBTS = (
    "",
    "the measured time of some rank is missing",
    "the ranks ask for different totals",
    "this run has groups that are smaller than the world. If each rank has its own data, pass own_data=True",
    "the ranks do not agree on the shares so far",
    "a rank got its new share too late",
)
"""Why all ranks get equal shares. The ones from FOR_GOOD on remain."""
MISSING, TOTALS, GROUPS, DISAGREE, LATE = range(1, len(DOUBTS))
FOR_GOOD = DISAGREE
MARGIN_NS = 1_000_000_000
LEAST_MARGIN, MOST_MARGIN = 4, 256
WINDOW_NS = 2_000_000_000
LEAST_WINDOW, MOST_WINDOW = 16, 256
"""A round comes this many steps after the one before has taken effect, in which ranks are measured."""
_HEADER = 9


def words_of(ranks: int) -> int:
    return _HEADER + 2 * ranks


class Rounds:
    """The plan that holds now, and the next one. The same on all ranks of the group from the same call on."""

    def __init__(self, index: int, ranks: int):
        """``index``: the place of this rank among ``ranks`` ranks."""
        self._index, self._ranks = index, ranks
        self.plan = EQUAL
        self.doubt = 0
        """Why shares are equal: an index of DOUBTS."""
        self.changes = 0
        """How often the shares have changed."""
        self.due = LEAST_WINDOW
        """The call in which the next round may begin."""
        self._next: tuple[int, Plan] | None = None
        self._late = False
        self._round = self._total = 0

    def begin_call(self, call: int, total: int) -> bool:
        """Takes over the next plan if it holds from this call on. Returns whether a new plan, or the same, begins."""
        if call == self.due:
            self._total = total  # of the same call on all ranks, because the total may change
        if self._next is None or call < self._next[0]:
            return False
        before, (_, self.plan) = self.plan, self._next
        self._next = None
        self.changes += before.paces != self.plan.paces
        return True

    def words(self, call: int, step_ns: int, doubt: int, pace: Pace | None) -> list[int]:
        """What this rank sends. ``step_ns``: the time between two calls. ``doubt``: what this rank knows itself."""
        doubt = max(doubt, LATE if self._late else 0, self.doubt if self.doubt >= FOR_GOOD else 0)
        digest = crc32(repr((self._round, self.plan.paces, sorted(self.plan.losing))).encode())
        words = [-call, self._total, -self._total, step_ns, -doubt, digest, -digest, self._round, -self._round]
        words += [NOTHING] * (2 * self._ranks)
        if pace is not None:
            words[_HEADER + self._index] = pace.ns
            words[_HEADER + self._ranks + self._index] = pace.error
        return words

    def hear(self, result: Sequence[int], call: int) -> None:
        """``result``: the minimum of the words of all ranks. ``call``: the last one that this rank has made."""
        newest, total, step_ns = -result[0], result[1], max(1, result[3])
        margin = min(MOST_MARGIN, max(LEAST_MARGIN, MARGIN_NS // step_ns))
        window = min(MOST_WINDOW, max(LEAST_WINDOW, WINDOW_NS // step_ns))
        self._round += 1
        self.due = newest + margin + window
        self.doubt = self._doubt(result)
        measured = list(map(Pace, result[_HEADER : _HEADER + self._ranks], result[_HEADER + self._ranks :]))
        plan = EQUAL if self.doubt else decide(self.plan, total, measured)
        self._next = newest + margin, plan
        self._late = self._late or call > self._next[0]

    def _doubt(self, result: Sequence[int]) -> int:
        found = -result[4]
        if result[5] != -result[6] or result[7] != -result[8]:
            found = max(found, DISAGREE)
        if result[1] != -result[2]:
            found = max(found, TOTALS)
        if NOTHING in result[_HEADER:]:
            found = max(found, MISSING)
        return found
