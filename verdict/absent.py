"""Ranks of a run that have no ledger. Pure functions.

A ledger begins at a rank's first sign of training: when it makes a process group, for example. Launchers number the
ranks of a node in order.
"""

from __future__ import annotations

from collections.abc import Collection

from ..ledger.reader import Ledger

MOST_NAMED = 64


def not_begun(newest: Collection[Ledger]) -> list[int]:
    """The ranks of the nodes here that have no ledger while others live: at most MOST_NAMED."""
    return without_ledger(newest, [ledger for ledger in newest if ledger.alive])


def without_ledger(newest: Collection[Ledger], known: Collection[Ledger]) -> list[int]:
    """The ranks of the nodes of ``known`` that have no ledger: at most MOST_NAMED."""
    there = {ledger.rank for ledger in newest}
    found: set[int] = set()
    for ledger in known:
        first = ledger.rank - ledger.local_rank
        if ledger.local_world_size:
            ends = min(first + ledger.local_world_size, ledger.world_size, first + len(there) + MOST_NAMED)
            found |= {*range(max(0, first), ends)} - there
    return sorted(found)[:MOST_NAMED]
