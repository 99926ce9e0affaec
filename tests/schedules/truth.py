"""What a fault cost, by replaying the same run without it.

Removing the fault changes the wall time of every rank, and all ranks' seconds are own time or waiting. The truth that a
conclusion is held against is what an exact account would charge to the fault:

* for a fault in a rank's own time (reads, decoding, pauses): all of its own seconds in that family, and what *other*
  ranks waited more than in the run without the fault;
* for slow compute (a rank, a stage, uneven microbatches): only what other ranks waited more, since computing slowly is
  counted as compute on the rank itself;
* for a slow link: the transfers of that group in the healthy run, and what all ranks waited more (own time does not
  change, so this is exactly the number of ranks times the longer wall time).

A rank that is late waits less itself. This is not taken off: the account charges its own seconds as they were spent.
"""

from __future__ import annotations

from dataclasses import dataclass

from whyidle.verdict.lookthrough import Conclusion, Culprit, Group, conclude

from .case import FAMILIES, Case
from .exchange import Options, exchange
from .replay import Replay, replay

FAMILY = {"read": "storage", "reads_turn": "storage", "decode": "cpu", "pause": "host", "compute": "straggler"}
FAMILY |= {"stage": "straggler", "microbatches": "straggler"}
FAMILY |= {"link_tp": "network", "link_dp": "network", "link_pp": "network"}


@dataclass(frozen=True, slots=True)
class Truth:
    family: str
    ranks: frozenset[int]  # whose fault it is; empty for a link
    group: Group | None
    seconds: float


def guilty(case: Case) -> frozenset[int]:
    fault = case.fault
    assert fault is not None
    if fault.kind in ("read", "decode", "pause", "compute"):
        return frozenset([fault.at])
    if fault.kind == "stage":
        return frozenset(rank for rank in range(case.ranks) if case.place(rank)[1] == fault.at)
    if fault.kind in ("microbatches", "reads_turn"):
        return frozenset(range(case.ranks))
    return frozenset()


def truth(faulty: Replay, healthy: Replay) -> Truth:
    case = faulty.case
    assert case.fault is not None
    family, ranks = FAMILY[case.fault.kind], guilty(case)
    more = {rank: faulty.waited(rank) - healthy.waited(rank) for rank in range(case.ranks)}
    if family == "network":
        group = slow_group(faulty)
        spent = sum(more.values())
        for wait in (wait for rank in group.ranks for wait in healthy.waits(rank)):
            if wait.group == group or (group.p2p and wait.group.p2p and wait.peer in group.ranks):
                spent += wait.transfer
        return Truth(family, ranks, group, max(0, spent) / 1e9)
    own = sum(faulty.own(rank)[FAMILIES.index(family)] for rank in ranks) if family in FAMILIES else 0
    everyone = len(ranks) == case.ranks
    spent = own + sum(ns for rank, ns in more.items() if everyone or rank not in ranks)
    return Truth(family, ranks, None, max(0, spent) / 1e9)


def slow_group(faulty: Replay) -> Group:
    slow = faulty.slow_link
    if isinstance(slow, Group):
        return slow
    assert isinstance(slow, tuple)
    return Group("pp", slow, p2p=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How well one case was judged; errors in points of the wall time of all ranks."""

    case: Case
    truth: float
    found: float
    error: float
    network_error: float
    named: Culprit | None
    right: bool
    conclusion: Conclusion


def found(conclusion: Conclusion, wanted: Truth) -> float:
    return sum(
        spent
        for culprit, spent in conclusion.charged.items()
        if culprit.family == wanted.family
        and (culprit.group == wanted.group if wanted.group else culprit.rank in wanted.ranks)
    )


def judge(case: Case, options: Options | None = None, pair: tuple[Replay, Replay] | None = None) -> Outcome:
    """Runs a case with and without its fault (or takes ``pair``), concludes, and compares."""
    faulty, healthy = pair or (replay(case), replay(case.healthy()))
    wanted = truth(faulty, healthy)
    ledgers = exchange(faulty, options)
    conclusion = conclude(ledgers)
    wall = faulty.total / 1e9
    told = found(conclusion, wanted)
    transfers = sum(wait.transfer for rank in range(case.ranks) for wait in faulty.waits(rank)) / 1e9
    network = sum(waits.network for rank in ledgers for waits in rank.groups)
    culprits = conclusion.culprits()
    named = culprits[0][0] if culprits else None
    right = named is not None and named.family == wanted.family
    if right and named is not None:
        right = named.group == wanted.group if wanted.group else named.rank in wanted.ranks
    return Outcome(
        case,
        wanted.seconds / wall,
        told / wall,
        100 * abs(told - wanted.seconds) / wall,
        100 * abs(network - transfers) / wall,
        named,
        right,
        conclusion,
    )
