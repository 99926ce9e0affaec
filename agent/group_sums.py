"""Sums the counters of process groups over ledgers, by the label of the group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from ..ledger.bus import bus_bytes
from ..ledger.causes import COLLECTIVE_OPS
from ..ledger.layout import GROUP_LABELS
from ..ledger.reader import Ledger
from .metrics.ranks import GROUP_PARTS

RANK_WORDS: tuple[str, ...] = (*(f"slot_{part}_ns" for part in GROUP_PARTS), "slot_calls")
"""The counters of a rank in a group: words of a ledger with one entry per slot."""
MOST_GROUPS = 64
"""How many group labels one sum may have. Ledgers are untrusted input, and each restart may bring new labels."""
OTHER_GROUPS = "other"

Groups = dict[str, tuple[int, ...]]
"""Label of a process group -> its counters."""
Counters = Callable[[Ledger, int], tuple[int, ...]]
"""A function that returns the counters of one slot of a ledger."""
Place = TypeVar("Place")
Key = TypeVar("Key")


def of_rank(ledger: Ledger, slot: int) -> tuple[int, ...]:
    """One value per word of RANK_WORDS."""
    return tuple([ledger.words[word][slot] for word in RANK_WORDS])


def of_run(ledger: Ledger, slot: int) -> tuple[int, ...]:
    """Waits in transfers (ns) and bus bytes."""
    ops = len(COLLECTIVE_OPS)
    sizes = ledger.words["slot_op_bytes"][slot * ops : (slot + 1) * ops]
    handed = {op: size for op, size in zip(COLLECTIVE_OPS, sizes, strict=True) if size}
    return ledger.words["slot_network_ns"][slot], bus_bytes(handed, ledger.words["slot_size"][slot])


def add_groups(groups: Groups, ledger: Ledger, counters: Counters) -> Groups:
    """``groups`` plus the counters of one more ledger. Slots with the same label are one group."""
    labels = ((slot, ledger.strings[name]) for slot, name in enumerate(GROUP_LABELS))
    counted = ((label, counters(ledger, slot)) for slot, label in labels if label)
    return added(groups, counted, MOST_GROUPS, OTHER_GROUPS)


def added(
    sums: Mapping[Key, tuple[int, ...]], counted: Iterable[tuple[Key, tuple[int, ...]]], most: int, other: Key
) -> dict[Key, tuple[int, ...]]:
    """``sums`` plus the counters of more labels. If there are ``most`` labels, new ones are summed under ``other``."""
    total = dict(sums)
    for label, values in counted:
        key = label if label in total or len(total) < most else other
        before = total.get(key)
        total[key] = values if before is None else tuple(map(int.__add__, before, values))
    return total


def across_nodes(ledgers: Iterable[Ledger], place_of: Callable[[Ledger], Place]) -> dict[Place, Counter[str]]:
    """Place -> label -> how many groups of ranks with this label have members both there and elsewhere.

    A label is there with 0 if all members of its groups are at this place. Groups whose members are not known, and
    those of a single rank, are left out. ``ledgers``: the newest of each rank.
    """
    members: Counter[tuple[Place, str, int, int]] = Counter()
    for ledger in ledgers:
        for slot, name in enumerate(GROUP_LABELS):
            key, size = ledger.words["slot_key"][slot], ledger.words["slot_size"][slot]
            if key and size > 1:
                members[place_of(ledger), ledger.strings[name], key, size] += 1
    found: defaultdict[Place, Counter[str]] = defaultdict(Counter)
    for (place, label, _, size), here in members.items():
        found[place][label] += here < size
    return dict(found)
