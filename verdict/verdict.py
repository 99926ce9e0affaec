"""The verdict: what a run lost most time to, and the evidence. Pure functions.

The verdict looks through stragglers: waits for a late rank count under what made that rank late. This is a conclusion.
The causes stay as they were measured.
"""

from __future__ import annotations

from ..ledger.causes import FAMILIES
from . import link_words, where
from .accounts import RunAccount
from .case import VERDICT_SHARE, Case, late_groups, late_ranks, look_through
from .evidence import RULES
from .headline import summary


def verdict(account: RunAccount) -> dict[str, object] | None:
    """Returns the verdict on a run; None if no rank has begun its first step."""
    window = account.rank_seconds
    if window <= 0:
        return None
    totals, charges, conclusion = look_through(account)
    family = max((name for name in FAMILIES if name != "compute"), key=lambda name: totals[name])
    if totals[family] < VERDICT_SHARE * window:
        family = "compute"
    case = Case(account, family, totals, charges, conclusion)
    return {
        "family": family,
        "share": totals[family] / window,
        "seconds": totals,
        "corroborated": None,  # node counters are not read here
        "summary": summary(case),
        "evidence": [sentence for rule in RULES for sentence in rule(case)],
        "late_ranks": [late._asdict() for late in late_ranks(case)],
        "late_groups": late_groups(case),
        "where": where.spots(case.account),
        "links": link_words.entries(case),
        "take_turns": case.take_turns,
    }
