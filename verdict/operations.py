"""Finds ranks that wait in different collectives of the same group: each waits for the others to call what it has
called. Pure functions.

Process groups with the same ranks are one group in a ledger, and their calls are counted together. So such ranks seem
to be in the same call. The bytes that they have passed to each operation tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations

from ..ledger.reader import Ledger, Slot
from .ends import end_of, listed
from .hang import long_waits

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
    """Names two ranks that wait, or waited when they failed or were killed, in different collectives."""
    live = any(ledger.alive for ledger in ledgers)
    waiting = long_waits(ledgers, now_ns, longer_than) if live else [one for one in ledgers if end_of(one) != "ended"]
    waiting = [one for one in waiting if one.attempt == max(ledger.attempt for ledger in ledgers)]
    groups: dict[int, dict[int, Slot]] = {}
    for ledger in sorted(waiting, key=lambda ledger: ledger.rank):
        for slot in ledger.slots:
            if not slot.pairwise and (not live or slot.index == ledger.position.slot):
                groups.setdefault(slot.key, {})[ledger.rank] = slot
    return [said for slots in groups.values() if (said := _sentence(slots, live))]


def _sentence(slots: Mapping[int, Slot], live: bool) -> str:
    for (one, slot), (other, its) in permutations(slots.items(), 2):
        if slot.calls != its.calls:
            continue
        apart = f"rank {one} {'waits' if live else 'waited'} in another collective than rank {other}: it has called"
        more, less = differences(slot, its)
        if more:
            return f"{apart} {listed(more)} where rank {other} has called {listed(less)}"
        # The bytes of an open wait may not be counted yet, such as those of DDP's gradients.
        passed = [op for op in EVEN if slot.bytes.get(op, 0) > its.bytes.get(op, 0)]
        if live and passed:
            return f"{apart} {listed(passed)}, and rank {other} has not"
    return ""
