"""The input of headlines and of the rules of evidence: where the seconds of a run went, after the look-through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..ledger.causes import FAMILIES, PHASE_ROW
from .accounts import RunAccount, Seconds
from .chain import conclusion_of
from .lookthrough import Conclusion

VERDICT_SHARE = 0.10
"""A family other than compute can be the verdict only if it has at least this share of the window."""


LATE_SHARE = 0.01
"""A rank is named as late if others waited for it for at least this share of the window."""


LEAD_SHARE = 0.2
"""The headline begins with late ranks if waits for them are at least this part of what the verdict's family took. Below
that, nearly all of it is the ranks' own time."""


@dataclass(frozen=True, slots=True)
class Charge:
    """Other ranks waited ``seconds`` for ``rank``, because of ``family`` (mapped by LATE_BY of lookthrough.py)."""

    rank: int
    family: str
    seconds: float
    open: bool = False  # the rank is still missing; the rule `hangs` says who waits for it


def late_charges(conclusion: Conclusion) -> list[Charge]:
    """Waits for late ranks and other stages, by the rank at the end of the chain and by what made it late."""
    return [
        Charge(culprit.rank, culprit.family, spent)
        for culprit, spent in conclusion.waited.items()
        if culprit.rank is not None and culprit.rank >= 0 and culprit.family not in ("network", "communication")
    ]


def open_charges(account: RunAccount) -> list[Charge]:
    """Waits that are open now because of a missing rank. They are not transfers: that rank has not entered yet.

    All of them are charged to the rank that has kept others waiting longest.
    """
    if not account.missing:
        return []
    first = max(account.missing, key=lambda missing: missing.seconds)
    waiting = {ledger.rank for missing in account.missing for ledger in missing.waiting}
    seconds = sum(rank.open_wait for rank in account.ranks if rank.rank in waiting)
    phase = first.ledger.position.phase if first.ledger.alive else ""
    return [Charge(first.ledger.rank, PHASE_ROW[phase].keeps if phase else "straggler", seconds, open=True)]


def look_through(account: RunAccount) -> tuple[Seconds, list[Charge], Conclusion]:
    """Looks through the waits for late ranks: (seconds per family, which ranks were late, the solved chain)."""
    conclusion = conclusion_of(account)
    totals = dict.fromkeys(FAMILIES, 0.0) | conclusion.seconds
    opened = open_charges(account)
    totals["communication"] -= sum(charge.seconds for charge in opened)
    for charge in opened:
        totals[charge.family] += charge.seconds
    return totals, late_charges(conclusion) + opened, conclusion


@dataclass(frozen=True, slots=True)
class Case:
    """What the rules of evidence get as input."""

    account: RunAccount
    family: str
    totals: Seconds  # after look-through
    charges: list[Charge]
    conclusion: Conclusion

    @property
    def window(self) -> float:
        return self.account.rank_seconds

    @property
    def led(self) -> bool:
        """Whether a good part of the verdict's seconds are waits for late ranks, or for a missing one."""
        waits = sum(charge.seconds for charge in self.charges if charge.family == self.family)
        return waits >= LEAD_SHARE * self.totals[self.family]

    @property
    def take_turns(self) -> bool:
        opened = sum(charge.seconds for charge in self.charges if charge.family == self.family and charge.open)
        closed = self.totals[self.family] - opened  # the conclusion knows only the waits that have ended
        return self.led and opened < closed and self.conclusion.take_turns(self.family)

    def late(self, family: str) -> float:
        """The seconds that ranks waited for ranks that ``family`` had made late."""
        return sum(charge.seconds for charge in self.charges if charge.family == family and not charge.open)


class Late(NamedTuple):
    """A rank that others waited for. ``share`` is of all ranks' windows; ``node`` is empty if it has no ledger here."""

    rank: int
    node: str
    share: float
    family: str


def late_ranks(case: Case) -> list[Late]:
    """The ranks that others waited for, worst first."""
    by_rank: dict[int, Seconds] = {}
    for charge in case.charges:
        families = by_rank.setdefault(charge.rank, {})
        families[charge.family] = families.get(charge.family, 0.0) + charge.seconds
    entries: list[tuple[float, int, str]] = [
        (sum(families.values()) / case.window, rank, max(families, key=lambda name: families[name]))
        for rank, families in by_rank.items()
    ]
    entries.sort(key=lambda entry: (-entry[0], entry[1]))
    nodes = case.conclusion.nodes
    return [Late(rank, nodes.get(rank, ""), share, family) for share, rank, family in entries if share >= LATE_SHARE]


def late_groups(case: Case) -> list[dict[str, object]]:
    """The groups that lost most to transfers or to waits that could not be split, worst first."""
    found: dict[tuple[str, tuple[int, ...], str], float] = {}
    for culprit, spent in case.conclusion.waited.items():
        if culprit.group is not None and culprit.group.ranks and culprit.family in ("network", "communication"):
            key = culprit.group.name, culprit.group.ranks, culprit.family
            found[key] = found.get(key, 0.0) + spent
    return [
        {"group": name, "ranks": list(ranks), "family": family, "share": spent / case.window}
        for (name, ranks, family), spent in sorted(found.items(), key=lambda entry: -entry[1])
        if spent >= LATE_SHARE * case.window
    ]
