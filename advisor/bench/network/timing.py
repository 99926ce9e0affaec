"""Computes the time of a call and its spread from the times of blocks of calls on each rank. Pure functions.

A block is a number of calls in a row, after a barrier. A collective ends when it has ended on every rank, so the
slowest rank counts. nccl-tests take the mean over ranks by default, so that mean is kept as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

MOST_CALLS = 1000
"""The most calls in a block."""


@dataclass(frozen=True)
class Timing:
    """The time of one call, in seconds."""

    seconds: float
    """The median over blocks of the slowest rank's time."""
    least: float
    most: float
    """`least` and `most`: the slowest rank's time in the fastest and in the slowest block."""
    mean: float
    """The median over blocks of the mean over ranks."""
    slowest: int
    """The rank that was slowest in most blocks."""
    blocks: int
    calls: int
    """The calls of a block."""


def plan(one_call: float, budget: float, blocks: int) -> tuple[int, int]:
    """Returns how many blocks of how many calls take about ``budget`` seconds, but at least one call.

    ``one_call``: the seconds of a call. ``blocks``: the most blocks.
    """
    affordable = int(budget / one_call) if one_call > 0 else blocks * MOST_CALLS
    if affordable <= blocks:
        return max(1, affordable), 1
    return blocks, min(MOST_CALLS, affordable // blocks)


def timing_of(of_ranks: Sequence[Sequence[float]], calls: int) -> Timing:
    """The timing of a call. ``of_ranks``: for each rank, the seconds of each block. ``calls``: the calls of a block."""
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
