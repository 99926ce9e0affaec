"""The look-through of live metrics: ranks tell each other what made them late.

A rank that others waited for may itself have waited in another group for another rank. With each block of an exchange,
the late ranks of earlier blocks tell what made them late: their *mix*, the shares by family as far as they know, in one
word per rank. A rank uses the mixes that it gets in one group for its own mix in the next group. A block stays open for
`ROUNDS` exchanges, so that causes can pass through this many groups. Then its waits are charged.

A report that reads the ledgers of all ranks solves the same chain exactly (verdict/lookthrough.py).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from ...ledger.causes import FAMILIES, LATE_FAMILIES
from ...ledger.layout import SLOTS
from ...ledger.waits import NOTHING, Settled
from ..groups import Group

ROUNDS = 3
NAMED = 16
"""How many late ranks of a block send their mix."""
MIX_FAMILIES = ("storage", "cpu", "host", "straggler", "network", "pipeline", "communication", "unattributed", "lost")
_LEVELS = 127
"""The largest value of a share. A word has seven bits for each of the nine shares."""

Mix = Mapping[str, float]
"""Family -> share; the shares add up to 1."""


def pack_mix(mix: Mix) -> int:
    word = 0
    for family in MIX_FAMILIES:
        word = word << 7 | round(mix.get(family, 0.0) * _LEVELS)
    return word


def read_mix(word: int) -> Mix:
    shares = {}
    for family in reversed(MIX_FAMILIES):
        shares[family] = float(word & _LEVELS)
        word >>= 7
    total = sum(shares.values())
    return {family: share / total for family, share in shares.items() if share} if total else {}


@dataclass(slots=True)
class OpenBlock:
    """A settled block whose waits for late ranks are not charged yet."""

    named: list[int]
    """The ranks that were latest, in the same order on all members."""
    settled: Settled
    heard: dict[int, Mix] = field(default_factory=dict)


def open_block(settled: Settled) -> OpenBlock:
    latest = sorted(settled.late_by.items(), key=lambda entry: (-entry[1], entry[0]))
    return OpenBlock([rank for rank, _ in latest[:NAMED]], settled)


class Mixes:
    """The mixes that this rank knows, in all of its groups."""

    def __init__(self, rank: int, slots: Container[int]):
        """``slots``: in which slots this rank has a group."""
        self._rank = rank
        self._slots = slots
        self._heard: dict[tuple[int, int], Mix] = {}  # slot, rank
        self._newest: dict[int, Settled] = {}
        self._groups: dict[int, Group] = {}
        self._elsewhere: dict[int, Sequence[int]] = {}  # slot -> the minimum of `_waits_elsewhere` over its members

    def settled(self, group: Group, settled: Settled) -> None:
        self._groups[group.slot] = group
        self._newest[group.slot] = settled

    def words(self, group: Group, blocks: Sequence[OpenBlock | None]) -> list[int]:
        """The words that this rank sends about the open blocks of a group, and about its waits in other groups.

        Every member sends the same number.
        """
        count = min(NAMED, len(group.ranks))
        words = []
        for block in blocks:
            said = [NOTHING] * count
            if block is not None and self._rank in block.named:
                mix = self._mix(group, block.settled)
                if mix:
                    said[block.named.index(self._rank)] = pack_mix(mix)
            words += said
        return [*words, *self._waits_elsewhere()]

    def _waits_elsewhere(self) -> list[int]:
        """Transfers in a step by slot, and the bubble of a step that is waited in collectives, negative. All in ns."""
        known = [self._newest.get(slot) for slot in range(SLOTS)]
        unknown = [NOTHING if slot in self._slots else 0 for slot in range(SLOTS)]
        return [
            _transfers(one) // one.steps if one is not None else none for one, none in zip(known, unknown, strict=True)
        ] + [-self._spare(None)]

    def _spare(self, outer: Group | None) -> int:
        """The part of the bubble of a step that this rank waits in collectives, ns. ``outer``: a group that contains
        its pipelines; None: any."""
        return sum(
            max(0, one.schedule - one.bubble) // one.steps
            for slot, one in self._newest.items()
            if self._groups[slot].pairwise and (outer is None or set(self._groups[slot].ranks) <= set(outer.ranks))
        )

    def hear(self, group: Group, blocks: Sequence[OpenBlock | None], words: Sequence[int]) -> None:
        """Stores the mixes that all members have sent."""
        count = min(NAMED, len(group.ranks))
        for number, block in enumerate(blocks):
            if block is None:
                continue
            for place, rank in enumerate(block.named):
                word = words[number * count + place]
                if word != NOTHING and (mix := read_mix(word)):
                    block.heard[rank] = mix
                    self._heard[group.slot, rank] = mix
        self._elsewhere[group.slot] = words[len(blocks) * count :]

    def charge(self, group: Group, block: OpenBlock) -> list[int]:
        """The waits of a block for late ranks, ns per FAMILIES. The bubble is taken off waits in a collective."""
        settled = block.settled
        whole = sum(settled.behind.values())
        spare = 0 if group.pairwise else min(whole, self._spare(group) * settled.steps)
        charged = [0] * len(FAMILIES)
        charged[FAMILIES.index("network")] = settled.latency
        charged[FAMILIES.index("pipeline")] = spare
        for rank, ns in settled.behind.items():
            mix = block.heard.get(rank) or self._heard.get((group.slot, rank)) or _unknown(group)
            for family, share in mix.items():
                charged[FAMILIES.index(family)] += int(ns * share * (whole - spare) / max(1, whole))
        return charged

    def _mix(self, group: Group, settled: Settled) -> Mix:
        """This rank's mix: what made it late in a group."""
        mix: dict[str, float] = {}
        for family, ns in zip(LATE_FAMILIES, settled.late_own, strict=True):
            _add(mix, {"straggler" if family == "compute" else family: 1.0}, ns)
        for slot, ns in enumerate(settled.late_elsewhere):
            if ns:
                self._follow(mix, group, slot, ns, settled.steps)
        total = sum(mix.values())
        if total <= 0:
            return {"pipeline": 1.0} if any(settled.late_elsewhere) else {}
        return {family: share / total for family, share in mix.items()}

    def _follow(self, mix: dict[str, float], group: Group, slot: int, ns: int, steps: int) -> None:
        """Adds ``ns`` of waits in another group, which made this rank late in ``steps``, as the exact look-through does
        (`followed` in verdict/lookthrough.py)."""
        if slot == group.slot:  # only in groups with messages: their own transfers
            _add(mix, {"network": 1.0}, ns)
            return
        there = self._newest.get(slot)
        if there is None:
            _add(mix, {"communication": 1.0}, ns)
            return
        elsewhere = self._groups[slot]
        behind: list[tuple[Mix, int]] = [
            (self._heard.get((slot, rank), _unknown(elsewhere)), waited) for rank, waited in there.behind.items()
        ]
        behind.append(({"communication": 1.0}, there.unsplit))
        bubble: list[tuple[Mix, int]] = [({"pipeline": 1.0}, there.bubble)]
        transfers: list[tuple[Mix, int]] = [
            ({"network": 1.0}, there.network + there.latency),
            ({"cpu": 1.0}, there.queue),
        ]
        most, left_out = self._limits(group, slot, there)
        inside = set(elsewhere.ranks) <= set(group.ranks)
        scale = steps / there.steps
        rest = found = float(ns)
        taken: list[tuple[Mix, float]] = []
        for kind in (behind, bubble, transfers) if inside else (behind, transfers, bubble):
            size = scale * sum(waited for _, waited in kind)
            part = min(size, rest, scale * most) if kind is transfers else min(size, rest)
            rest -= part
            if kind is bubble:
                found -= min(part, scale * left_out)
                part = max(0.0, part - scale * left_out)
            taken += [(one, part * scale * waited / size) for one, waited in kind if part and waited]
        whole = sum(share for _, share in taken)
        if whole <= 0 and found >= ns:
            _add(mix, _unknown(elsewhere), ns)
        for one, share in taken:
            _add(mix, one, found * share / whole)

    def _limits(self, group: Group, slot: int, there: Settled) -> tuple[float, float]:
        """(the most transfers in another group that can have made this rank late; how much bubble is left out), ns."""
        said = self._elsewhere.get(group.slot)
        if said is None:
            return inf, 0.0
        least, most_spare = said[slot], -said[SLOTS]
        most = max(0, _transfers(there) - least * there.steps) if least != NOTHING else inf
        if group.pairwise or not self._groups[slot].pairwise:
            return most, 0.0
        return most, max(0, most_spare * there.steps - max(0, there.schedule - there.bubble))


def _transfers(settled: Settled) -> int:
    return settled.network + settled.latency + settled.queue


def _unknown(group: Group) -> Mix:
    return {"pipeline" if group.pairwise else "straggler": 1.0}


def _add(mix: dict[str, float], other: Mix, weight: float) -> None:
    for family, share in other.items():
        if share * weight > 0:
            mix[family] = mix.get(family, 0.0) + share * weight
