"""Finds ranks that wait in different collectives of the same group: each waits for the others to call what it has
called. Pure functions.

Process groups with the same ranks are one group in a ledger, and their calls are counted together. So such ranks seem
to be in the same call. The number of the process group tells them apart, or the bytes that they have passed to each
operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import NamedTuple

from ..ledger.causes import COLLECTIVE_OPS
from ..ledger.failures import failure_of
from ..ledger.reader import Ledger, Slot
from .ends import ended_well, listed, named
from .hang import failed_wait, has_not_entered, long_waits, open_group
from .stuck import stuck_line

MESSAGE_SECONDS = 30.0
"""A large message may be on its way for some time. After this, it is taken to be missing."""
EVEN = ("all_reduce", "all_gather", "reduce_scatter")
"""Operations to which all ranks of a group pass the same number of bytes."""


def differences(one: Slot, other: Slot) -> tuple[list[str], list[str]]:
    """(the operations to which the first rank has passed more bytes, those to which the second one has).

    Both are empty unless both ranks have more of something: other sizes of the same operation are usual, such as those
    of the root of a gather.
    """
    grown = {op: one.bytes.get(op, 0) - other.bytes.get(op, 0) for op in {*one.bytes, *other.bytes}}
    more, less = (sorted(op for op, by in grown.items() if sign * by > 0) for sign in (1, -1))
    return (more, less) if more and less else ([], [])


def differ(slots: Sequence[Slot]) -> bool:
    """Whether two of these ranks have called other operations in their group."""
    return any(differences(one, other)[0] for one, other in combinations(slots, 2))


def sentences(ledgers: Sequence[Ledger], now_ns: int, longer_than: float) -> list[str]:
    """Names ranks that wait, or waited when they failed or were killed, in another collective than another rank. That
    one waits too, or it has made as many calls and has ended."""
    groups, live = _groups(ledgers, now_ns, longer_than)
    apart = [said for members in groups if (said := _sentence(members, live))]
    return [*apart, *_messages(long_waits(ledgers, now_ns, max(longer_than, MESSAGE_SECONDS)))]


def places(ledgers: Sequence[Ledger], now_ns: int, longer_than: float) -> list[str]:
    """Where such ranks are, if nothing but their lines tells that they may be in different collectives. For example,
    they may wait in groups of the same ranks."""
    groups, live = _groups(ledgers, now_ns, longer_than)
    return [said for members in groups if not _sentence(members, live) and (said := _lines_apart(members, live))]


def _groups(ledgers: Sequence[Ledger], now_ns: int, longer_than: float) -> tuple[list[dict[int, _Member]], bool]:
    """The members of each group that wait, or waited, by their ranks; and whether any rank is alive."""
    live = any(ledger.alive for ledger in ledgers)
    waiting = long_waits(ledgers, now_ns, longer_than) if live else [one for one in ledgers if not ended_well(one)]
    if any(one.position.phase == "collective" or failed_wait(one) is not None for one in waiting):
        waiting += filter(_left, ledgers)
    newest = max((ledger.attempt for ledger in ledgers), default=0)
    groups: dict[int, dict[int, _Member]] = {}
    for ledger in sorted((one for one in waiting if one.attempt == newest), key=lambda ledger: ledger.rank):
        for slot in ledger.slots:
            if not slot.pairwise and (not ledger.alive or slot.index == ledger.position.slot):
                groups.setdefault(slot.key, {})[ledger.rank] = _Member(ledger, slot)
    return [*groups.values()], live


def _left(ledger: Ledger) -> bool:
    """Whether it has ended, and waits for nobody."""
    return not ledger.alive and ended_well(ledger)


class _Member(NamedTuple):
    ledger: Ledger
    slot: Slot

    @property
    def waits(self) -> bool:
        """Whether its last known place is in this group."""
        position = self.ledger.position
        waits = position.phase == "collective" and position.slot == self.slot.index
        return waits or failed_wait(self.ledger) == self.slot.index

    @property
    def number(self) -> int:
        """Which of the process groups with these ranks it waits in. The host of an accelerator is ahead of it: 0."""
        return self.ledger.open_group_number if self.ledger.device == "cpu" else 0

    @property
    def line(self) -> str:
        """The line of the training's own code; empty if it has not been there for long."""
        if failed_wait(self.ledger) == self.slot.index and (failure := failure_of(self.ledger.strings["failure"])):
            return failure.place
        return stuck_line(self.ledger) if self.waits else ""


def _sentence(members: Mapping[int, _Member], live: bool) -> str:
    behind = ""
    waiting = [one for one in members.items() if not _left(one[1].ledger)]
    for (one, mine), (other, its) in product(waiting, members.items()):
        left = _left(its.ledger)
        if one == other or (left and not mine.waits):
            continue
        if mine.slot.calls != its.slot.calls:
            if live and not left and mine.slot.calls < its.slot.calls and not behind:
                behind = (
                    f"rank {one} is in call {mine.slot.calls} of group {mine.slot.label}, and rank {other} is in call"
                    f" {its.slot.calls}"
                )
            continue
        apart = f"rank {one} {'waits' if live else 'waited'} in another collective than rank {other}: it has called"
        more, less = differences(mine.slot, its.slot)
        if not more:
            more, less = _calls_apart(mine, its)
        if more:
            return f"{apart} {listed(more)} where rank {other} has called {listed(less)}"
        if mine.waits and its.waits and mine.number != its.number:
            places = [f"rank {number} at {each.line}" for number, each in ((one, mine), (other, its)) if each.line]
            wait = f"ranks {one} and {other} {'wait' if live else 'waited'}"
            said = f"{wait} in different process groups that have the same ranks"
            return f"{said}{f': {listed(places)}' if places else ''}"
        # The bytes of an open wait may not be counted yet, such as those of DDP's gradients.
        passed = [op for op in EVEN if mine.slot.bytes.get(op, 0) > its.slot.bytes.get(op, 0)]
        if passed and mine.waits and its.waits:
            return f"{apart} {listed(passed)}, and rank {other} has not"
    return behind


def _messages(waiting: Sequence[Ledger]) -> Iterator[str]:
    """Ranks that wait for a message of one that waits for them, in a collective."""
    known = {ledger.rank: ledger for ledger in waiting}
    found: dict[int, list[Ledger]] = {}
    for one in waiting:
        other = known.get(one.open_peer_rank)
        if other is None or other.attempt != one.attempt or open_group(one) is None or not has_not_entered(other, one):
            continue
        if (there := open_group(other)) is not None and not there.pairwise:
            found.setdefault(other.rank, []).append(one)
    for rank, ones in found.items():
        at = [f"rank {each.rank} at {line}" for each in (*ones[:1], known[rank]) if (line := stuck_line(each))]
        who, wait, have = named([one.rank for one in ones]), *(("waits", "has") if len(ones) == 1 else ("wait", "have"))
        yield (
            f"{who} {wait} in a send or receive with rank {rank}, which waits in a collective that {who} {have} not"
            f" entered{f': {listed(at)}' if at else ''}"
        )


def _calls_apart(one: _Member, other: _Member) -> tuple[list[str], list[str]]:
    """As `differences`, by the calls. They are only known for all groups together."""
    if len(one.ledger.slots) > 1 or len(other.ledger.slots) > 1:
        return [], []
    calls = [dict(zip(COLLECTIVE_OPS, each.ledger.words["collective_calls"], strict=True)) for each in (one, other)]
    more, less = ([op for op in COLLECTIVE_OPS if a[op] > b[op]] for a, b in (calls, calls[::-1]))
    return (more, less) if more and less else ([], [])


def _lines_apart(members: Mapping[int, _Member], live: bool) -> str:
    at: dict[str, list[int]] = {}
    waiting = {number: member for number, member in members.items() if not _left(member.ledger)}
    for number, member in waiting.items():
        at.setdefault(member.line, []).append(number)
    if "" in at or len(at) < 2 or len({member.slot.calls for member in waiting.values()}) > 1:
        return ""
    places = sorted(at.items(), key=lambda place: len(place[1]))
    told = listed([f"{named(ranks)} at {line}" for line, ranks in places])
    return f"ranks {'are' if live else 'were'} perhaps in different collectives: {told}"
