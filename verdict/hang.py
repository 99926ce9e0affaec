"""Finds missing ranks: those that have not entered a collective in which other ranks of their run already wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..ledger.directory import run_of
from ..ledger.reader import Ledger, Slot


@dataclass(frozen=True, slots=True)
class Missing:
    """The rank of ``ledger`` has not entered a collective in which the ``waiting`` ranks wait."""

    ledger: Ledger
    waiting: tuple[Ledger, ...]  # the longest wait first
    seconds: float  # the longest wait


def open_seconds(ledger: Ledger, now_ns: int) -> float:
    """How long the rank has been in its open phase."""
    return max(0.0, (now_ns - ledger.position.since_ns) / 1e9)


def missing_ranks(newest: Iterable[Ledger], now_ns: int, *, longer_than: float) -> list[Missing]:
    """Returns the ranks for which others have waited longer than ``longer_than`` seconds.

    ``newest`` holds one ledger per rank: that of its newest attempt. Only ranks with a ledger here can be named. For
    ranks on other nodes, use their own agent or a rule that sees all nodes.
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
        # A waiter of a newer attempt waits for this rank, which has not restarted. An older waiter proves nothing.
        return candidate.attempt < waiter.attempt
    where = _open_group(waiter)
    if where is None:
        # A rank that has entered more collectives than the waiter has already left this one.
        return candidate.waits_reached <= waiter.waits_reached
    if where.pairwise:
        return False  # to wait for a message is normal in a pipeline: other stages are busy
    there = next((slot for slot in candidate.slots if slot.key == where.key), None)
    if there is None:
        # Every rank is in the world. It is known to be in another group only if it has waited there before.
        return where.size == waiter.world_size and not where.pairwise
    return there.calls < where.calls


def _open_group(waiter: Ledger) -> Slot | None:
    """The group in which a rank waits now; None if it is not known."""
    return next((slot for slot in waiter.slots if slot.index == waiter.position.slot), None)
