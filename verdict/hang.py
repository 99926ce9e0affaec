"""Who is missing: ranks that have not entered a collective in which others of their run already wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..ledger.directory import run_of
from ..ledger.reader import Ledger, Slot


@dataclass(frozen=True, slots=True)
class Missing:
    """``ledger``'s rank has not entered a collective in which ``waiting`` ranks are; the longest for ``seconds``."""

    ledger: Ledger
    waiting: tuple[Ledger, ...]  # the longest wait first
    seconds: float


def open_seconds(ledger: Ledger, now_ns: int) -> float:
    """For how long the rank has been in its open phase."""
    return max(0.0, (now_ns - ledger.position.since_ns) / 1e9)


def missing_ranks(newest: Iterable[Ledger], now_ns: int, *, longer_than: float) -> list[Missing]:
    """The ranks for which others have waited ``longer_than`` seconds.

    ``newest`` holds one ledger per rank: its newest attempt's. Only ranks with a ledger here can be named; those of
    other nodes are for their own agent, or for a rule that sees all nodes, to name.
    """
    ledgers = list(newest)
    waiters = [
        ledger
        for ledger in ledgers
        if ledger.alive and ledger.position.phase == "collective" and open_seconds(ledger, now_ns) > longer_than
    ]
    waiters.sort(key=lambda ledger: ledger.position.since_ns)
    found = []
    for candidate in ledgers:
        waiting = tuple(waiter for waiter in waiters if _waits_for(waiter, candidate))
        if waiting:
            found.append(Missing(candidate, waiting, open_seconds(waiting[0], now_ns)))
    return found


def _waits_for(waiter: Ledger, candidate: Ledger) -> bool:
    if run_of(candidate) != run_of(waiter) or candidate.rank == waiter.rank or candidate.rank >= waiter.world_size:
        return False
    if candidate.alive and candidate.position.phase == "collective":
        return False
    if candidate.attempt != waiter.attempt:
        # The waiter's attempt goes on without this rank: it has not come back. An older waiter proves nothing.
        return candidate.attempt < waiter.attempt
    where = _open_group(waiter)
    if where is None:
        # A rank that has entered more collectives than the waiter was there and has gone on.
        return candidate.waits_reached <= waiter.waits_reached
    if where.pairwise:
        return False  # a stage waits for messages whenever another one is busy
    there = next((slot for slot in candidate.slots if slot.key == where.key), None)
    if there is None:
        # Every rank is in the world; of another group this one is a member only if it has ever waited there.
        return where.size == waiter.world_size and not where.pairwise
    return there.calls < where.calls


def _open_group(waiter: Ledger) -> Slot | None:
    """The group in which a rank waits now; None where it is not known."""
    return next((slot for slot in waiter.slots if slot.index == waiter.position.slot), None)
