"""Parts of a rank's own time that looks at its training thread show to be data, logging or saves. Pure functions.

A loop that makes its batches itself, without a loader that hooks know, waits in its own code. The causes of the ledger
cannot say so, because only some moments were looked at. So the report moves the share of the looks: it is a sample,
with the error of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import sqrt
from typing import TYPE_CHECKING

from ..ledger.below import BELOW, BLOCKERS, STATES
from ..ledger.causes import CAUSE_ROW, WORK_CAUSES
from ..ledger.reader import Ledger

if TYPE_CHECKING:
    from .accounts import RankAccount, RunAccount

Sampled = dict[tuple[str, str], float]
"""(the cause in which the ledger has it, the cause that it was moved to) -> seconds."""

LEAST_LOOKS = 5
"""With fewer looks below such functions in all ranks, nothing is moved."""
SHARE = 0.02
"""Evidence mentions what was moved if it is at least this share of the window."""
_MOST = 0.5
_TO: dict[str, dict[str, str]] = {
    "data": {"blocked": "data_read", "host": "data_cpu", "work": "data_cpu"},
    "logging": dict.fromkeys(STATES, "logging"),
    "saving": {"blocked": "checkpoint_write", "host": "checkpoint_cpu", "work": "checkpoint_cpu"},
}
_FROM: dict[str, tuple[str, ...]] = {"blocked": ("host_blocked",), "host": ("host",), "work": WORK_CAUSES}
_OF: dict[str, str] = {"blocked": "blocked_looks", "host": "host_looks", "work": "work_looks"}
_SAID = {
    "data_read": "the loop makes or awaits its batches itself, and is blocked there",
    "data_cpu": "the loop makes its batches itself",
    "logging": CAUSE_ROW["logging"].headline,
    "checkpoint_write": "the loop saves in its own way, and is blocked there",
    "checkpoint_cpu": "the loop saves in its own way",
}
_IN = {"data": "making or awaiting batches", "logging": "in loggers or callbacks", "saving": "saving in its own way"}
_KIND = {cause: kind for kind, causes in _TO.items() for cause in causes.values()}


def enough(ledgers: Iterable[Ledger]) -> frozenset[str]:
    """The kinds of functions below which there were enough looks. Ranks of a run do the same, so their looks add up."""
    looks = Counter(dict.fromkeys(BELOW, 0))
    for ledger in ledgers:
        looks.update({kind: sum(ledger.words[f"{kind}_looks"]) for kind in BELOW})
    return frozenset(kind for kind, count in looks.items() if count >= LEAST_LOOKS)


def move(seconds: dict[str, float], ledger: Ledger, kinds: frozenset[str]) -> Sampled:
    """Moves the seconds of one attempt. Their sum stays the same. Returns what was moved."""
    moved: Sampled = {}
    before = dict(seconds)
    for kind in (kind for kind in BELOW if kind in kinds):
        found = dict(zip(STATES, ledger.words[f"{kind}_looks"], strict=True))
        for state, looks in found.items():
            whole, to = ledger.words[_OF[state]][0], _TO[kind][state]
            for cause in _FROM[state] if 0 < looks <= whole else ():
                spent = max(0.0, min(before[cause] * looks / whole, seconds[cause]))
                seconds[cause] -= spent
                seconds[to] += spent
                moved[cause, to] = moved.get((cause, to), 0.0) + spent
    return moved


def moved_from(rank: RankAccount, cause: str) -> float:
    return sum(spent for (of, _), spent in rank.moved.items() if of == cause)


def moved_to(rank: RankAccount, *causes: str) -> float:
    return sum(spent for (_, to), spent in rank.moved.items() if to in causes)


def reason(ranks: Sequence[RankAccount], cause: str) -> str:
    """The reason in a headline on ``cause``; empty if most of it was not sampled."""
    spent = sum(rank.seconds[cause] for rank in ranks)
    if cause not in _SAID or sum(moved_to(rank, cause) for rank in ranks) < _MOST * spent or spent <= 0:
        return ""
    worst = max(ranks, key=lambda rank: moved_to(rank, cause)).newest
    kind = _KIND[cause]
    on = blocked_on(worst, kind) if not cause.endswith("_cpu") else ""
    function = function_of(worst, kind)
    return f"{_SAID[cause]}{f': {function}' if function else ''}{f', on {on}' if on else ''}"


def sentences(account: RunAccount) -> Iterator[str]:
    """The evidence."""
    for rank in account.ranks:
        who = f"rank {rank.rank}: " if len(account.ranks) > 1 else ""
        for kind in BELOW:
            causes = set(_TO[kind].values())
            spent, ledger = moved_to(rank, *causes), rank.newest
            if spent < SHARE * rank.wall or not (function := function_of(ledger, kind)):
                continue
            on = blocked_on(ledger, kind)
            looks = sum(ledger.words[f"{kind}_looks"])
            error = f" (± {100 * _error(ledger, kind):.0f})"
            yield (
                f"{who}{100 * spent / rank.wall:.0f} %{error} of the loop is {_IN[kind]}, most of it below {function}"
                f"{f', blocked on {on}' if on else ''} (sampled, {looks} looks)"
            )


def _error(ledger: Ledger, kind: str) -> float:
    """The standard error of the share of these looks among all (binomial, with one more of each, so that it is not 0
    where all looks agree)."""
    count = sum(ledger.words[of][0] for of in _OF.values()) + 2
    share = (sum(ledger.words[f"{kind}_looks"]) + 1) / count
    return sqrt(share * (1 - share) / count) if share < 1 else 0.0


def blocked_on(ledger: Ledger, kind: str) -> str:
    """What blocked the thread in most of these looks; empty if nothing did."""
    found = dict(zip(BLOCKERS, ledger.words[f"{kind}_blocked_on"], strict=True))
    most = max(found, key=found.__getitem__)
    return most if 2 * found[most] > sum(found.values()) else ""


def function_of(ledger: Ledger, kind: str) -> str:
    """Such as `` `get_batch` (train.py:116)``; empty if it is not known."""
    where, _, function = ledger.strings[f"{kind}_below"].rpartition(" ")
    return f"`{function}` ({where})" if where and function else ""
