"""From the times of blocks of calls on each rank to one time and its spread. Pure functions.

A block is some calls right after each other, between two barriers. A collective is over when it is over on every rank,
so that the slowest rank counts. (nccl-tests average over ranks unless told otherwise: that mean is kept beside it.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

MOST_CALLS = 1000
"""In a block."""


@dataclass(frozen=True)
class Timing:
    """Of one call, in seconds."""

    seconds: float
    """The median over blocks of the slowest rank."""
    least: float
    most: float
    """The best and the worst block's slowest rank."""
    mean: float
    """The median over blocks of the mean over ranks."""
    slowest: int
    """The rank that was slowest in most blocks."""
    blocks: int
    calls: int
    """Of a block."""


def plan(one_call: float, budget: float, blocks: int) -> tuple[int, int]:
    """-> (blocks, calls of each) that take about ``budget`` seconds; one call at least."""
    affordable = int(budget / one_call) if one_call > 0 else blocks * MOST_CALLS
    if affordable <= blocks:
        return max(1, affordable), 1
    return blocks, min(MOST_CALLS, affordable // blocks)


def timing_of(of_ranks: Sequence[Sequence[float]], calls: int) -> Timing:
    """``of_ranks``: for each rank the seconds of each block."""
    blocks = list(zip(*of_ranks, strict=True))
    worst = [max(block) / calls for block in blocks]
    last = [block.index(max(block)) for block in blocks]
    return Timing(
        seconds=median(worst),
        least=min(worst),
        most=max(worst),
        mean=median(fmean(block) / calls for block in blocks),
        slowest=max(sorted(set(last)), key=last.count),
        blocks=len(blocks),
        calls=calls,
    )
