"""How the ranks of a run began: who waited for which rank before the first step."""

from __future__ import annotations

from ..ledger.causes import WAIT_CAUSES
from .accounts import RunAccount
from .hang import HANG_SECONDS


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
