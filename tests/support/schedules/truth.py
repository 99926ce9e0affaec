"""What a fault cost, by replaying the same run without it.

Removing the fault changes the wall time of every rank, and all ranks' seconds are own time or waiting. A conclusion
is compared with the truth: what an exact account charges to the fault. That is the time that it took on the ranks with
the fault, and the time for which it made ranks wait.

* A rank's own time (reads, decoding, pauses): all of its own seconds in that family in the faulty run, and what the
  other ranks waited more than in the run without the fault.
* Slow compute (a rank, a stage, uneven microbatches): only the waiting, since computing slowly is counted as compute on
  the rank itself.
* A slow link: the transfers of its group in the faulty run, and what ranks waited more outside these transfers.

A guilty rank that is late waits less itself. This is not taken off: the account charges its own seconds as they were
spent, although some of them would have been spent waiting. If a guilty rank waits more, that counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from whyidle.verdict.lookthrough import Conclusion, Culprit, Group, conclude

from .case import FAMILIES, Case
from .exchange import exchange
from .member import Options
from .replay import Replay, replay

FAMILY = {"read": "storage", "reads_turn": "storage", "decode": "cpu", "pause": "host", "compute": "straggler"}
FAMILY |= {"stage": "straggler", "microbatches": "straggler"}
FAMILY |= {"link_tp": "network", "link_dp": "network", "link_pp": "network"}


@dataclass(frozen=True, slots=True)
class Truth:
    family: str
    ranks: frozenset[int]  # the ranks with the fault; empty for a link
    group: Group | None
    seconds: float
    uneven: bool = False  # microbatches of unequal length also make the bubble longer


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
    group = slow_group(faulty) if family == "network" else None
    spent = sum(faulty.own(rank)[FAMILIES.index(family)] for rank in ranks) if family in FAMILIES else 0
    everyone = len(ranks) == case.ranks
    for rank in range(case.ranks):
        transfers = transferred(faulty, rank, group)
        more = (faulty.waited(rank) - transfers) - (healthy.waited(rank) - transferred(healthy, rank, group))
        guilty_rank = rank in (group.ranks if group else ranks) and not everyone
        spent += transfers + (max(0, more) if guilty_rank else more)
    return Truth(family, ranks, group, max(0, spent) / 1e9, case.fault.kind == "microbatches")


def transferred(run: Replay, rank: int, group: Group | None) -> int:
    """ns of a rank's waits that were transfers of a group, or of the link of two neighbours."""
    if group is None or rank not in group.ranks:
        return 0
    return sum(
        wait.transfer
        for wait in run.waits(rank)
        if wait.group == group or (group.p2p and wait.group.p2p and wait.peer in group.ranks)
    )


def slow_group(faulty: Replay) -> Group:
    slow = faulty.slow_link
    if isinstance(slow, Group):
        return slow
    assert isinstance(slow, tuple)
    return Group("pp", slow, p2p=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How well one case was concluded, with errors in points of the wall time of all ranks."""

    case: Case
    truth: float
    found: float
    error: float
    network_error: float
    named: Culprit | None
    right: bool
    conclusion: Conclusion


def found(conclusion: Conclusion, wanted: Truth) -> float:
    uneven = conclusion.seconds.get("pipeline", 0.0) - conclusion.schedule if wanted.uneven else 0.0
    return uneven + sum(
        spent
        for culprit, spent in conclusion.charged.items()
        if culprit.family == wanted.family
        and (culprit.group == wanted.group if wanted.group else culprit.rank in wanted.ranks)
    )


def judge(case: Case, options: Options | None = None, pair: tuple[Replay, Replay] | None = None) -> Outcome:
    """Runs a case with and without its fault (or uses ``pair``), concludes, and compares."""
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
    family = named.family if named is not None else ""
    right = family == wanted.family and not conclusion.take_turns(family)
    if case.fault and case.fault.kind in ("microbatches", "reads_turn"):
        right = conclusion.take_turns(wanted.family)
    elif right and named is not None:
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
