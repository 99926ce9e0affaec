"""How the ranks of a run began: which have no ledger yet, and who waited for which rank before the first step."""

from __future__ import annotations

from collections.abc import Collection

from ..ledger.causes import WAIT_CAUSES
from ..ledger.reader import Ledger
from .accounts import RunAccount
from .hang import HANG_SECONDS

MOST_NAMED = 64


def not_begun(newest: Collection[Ledger]) -> list[int]:
    """The ranks of the nodes here that have no ledger while others live: at most MOST_NAMED.

    Launchers number the ranks of a node in order. A ledger begins at a rank's first sign of training.
    """
    there = {ledger.rank for ledger in newest}
    found: set[int] = set()
    for ledger in newest:
        first = ledger.rank - ledger.local_rank
        if ledger.alive and ledger.local_world_size:
            ends = min(first + ledger.local_world_size, ledger.world_size, first + len(there) + MOST_NAMED)
            found |= {*range(max(0, first), ends)} - there
    return sorted(found)[:MOST_NAMED]


def startup_waits(whole: RunAccount) -> dict[str, object] | None:
    """Who waited in collectives for which rank before the first step; None unless all ranks have begun and it was long.

    The rank that others waited for has waited least itself. ``seconds``: how much longer another rank waited.
    """
    world = max((rank.newest.world_size for rank in whole.ranks), default=0)
    complete = len(whole.ranks) == world and all(rank.stepped and rank.attempts == 1 for rank in whole.ranks)
    if world < 2 or not complete:
        return None
    waited = {rank.rank: sum(rank.before[cause] for cause in WAIT_CAUSES) for rank in whole.ranks}
    last = min(waited, key=lambda rank: waited[rank])
    waiting = [rank for rank, seconds in waited.items() if seconds - waited[last] > HANG_SECONDS]
    if not waiting:
        return None
    return {"rank": last, "seconds": max(waited.values()) - waited[last], "waiting": waiting}
