"""The verdict: what a run lost most time to, and the evidence. Pure functions.

The verdict looks through stragglers: waits for a late rank count under what made that rank late. This is a conclusion.
The causes stay as they were measured.
"""

from __future__ import annotations

from ..ledger.causes import FAMILIES
from . import link_words, unused, where, workers
from .accounts import RunAccount, Seconds
from .case import VERDICT_SHARE, Case, late_groups, late_ranks, look_through
from .enough import Limits, too_short
from .evidence import RULES
from .headline import summary


def verdict(account: RunAccount, least: Limits | None = None) -> dict[str, object] | None:
    """Returns the verdict on a run; None if no rank has begun its first step, or if the run is too short.

    A run that leaves its GPUs alone is judged at once, and that is its verdict, whatever its process does on the CPU.

    ``least``: see `too_short`.
    """
    window = account.rank_seconds
    if window <= 0:
        return None
    idle = unused.verdict_of(account)
    if idle is None and too_short(account, least) is not None:
        return None
    totals, charges, conclusion = look_through(account)
    family = _leading(account, totals)
    case = Case(account, family, totals, charges, conclusion)
    found: dict[str, object] = {
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
    if idle is not None:
        found |= idle | {"evidence": unused.next_steps(account)}
    return found


def _leading(account: RunAccount, totals: Seconds) -> str:
    """The family that a verdict names: the largest one other than compute, if it is large enough.

    Time whose cause is not known leads only where no known family is large enough. Waits for a batch that never came
    are unattributed, but known. Where a loop goes on making process groups, and their threads are left, the lack of
    CPUs follows from what it does: the family is then the loop's own code, if that is large, too.
    """
    least = VERDICT_SHARE * account.rank_seconds
    large = [name for name in FAMILIES if name != "compute" and totals[name] >= least]
    explained = bool(workers.reason_of_unattributed(account.ranks))
    known = [name for name in large if name != "unattributed" or explained]
    first = max(known or large, key=lambda name: totals[name], default="compute")
    follows = first == "cpu" and "host" in known and 2 * totals["host"] >= totals["cpu"]
    left = where.is_making_groups(account.ranks) and where.groups_left(account.ranks)
    return "host" if follows and left else first
