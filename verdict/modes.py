"""Modes of torch and CUDA that were left on: see `ledger.modes`. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..ledger.modes import MODES
from .ends import named

if TYPE_CHECKING:
    from .accounts import RankAccount

LEFT_ON, LEAST_LOOKS = 0.5, 5
"""A mode was left on if it was so in this share of the looks at the loop, and in at least so many."""
WORDS = {
    "anomaly": "torch's anomaly detection is on: it keeps a stack for each operation, and reads each gradient",
    "profiler": "a profiler of torch is on: it records each operation",
    "blocking": "CUDA_LAUNCH_BLOCKING is 1: the host waits for each kernel before it launches the next one",
}


def left_on(ranks: Sequence[RankAccount]) -> dict[str, list[int]]:
    """Mode -> the ranks in which it was on all the time, or most of it. Without the modes that were not."""
    found = {mode: [rank.rank for rank in ranks if _is_on(rank, index)] for index, mode in enumerate(MODES)}
    return {mode: numbers for mode, numbers in found.items() if numbers}


def slowed(ranks: Sequence[RankAccount]) -> list[RankAccount]:
    """The ranks in which a mode was left on."""
    return [rank for rank in ranks if left_on([rank])]


def _is_on(rank: RankAccount, index: int) -> bool:
    ledger = rank.newest
    return ledger.words["mode_looks"][index] >= max(LEAST_LOOKS, LEFT_ON * ledger.base_looks)


def reason(ranks: Sequence[RankAccount]) -> str:
    """Why the host launches too late; empty if most of the idle time is of ranks in which no mode was left on."""
    if 2 * sum(rank.gaps or 0.0 for rank in slowed(ranks)) < sum(rank.gaps or 0.0 for rank in ranks):
        return ""
    return " and ".join(WORDS[mode].partition(":")[0] for mode in left_on(ranks))


def sentences(ranks: Sequence[RankAccount]) -> Iterator[str]:
    """The evidence."""
    for mode, numbers in left_on(ranks).items():
        who = f"{named(numbers)}: " if len(ranks) > 1 else ""
        yield f"{who}{WORDS[mode]}. Each step takes longer"
