"""What the injected delays cost, from the job's own records (see faults.Trace) and not from ledgers.

A data-loading worker works in advance, so compute hides a part of its delays. The cost for the loop is the overlap of
the worker's delays with the loop's waits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Interval = tuple[int, int]  # ns of CLOCK_MONOTONIC


@dataclass(frozen=True, slots=True)
class Trace:
    """The records of one run. ``windows``: rank -> the moment at which its startup ends and the accounting begins."""

    directory: str
    windows: Mapping[int, int]

    def intervals(self, name: str, rank: int) -> list[Interval]:
        """The intervals with this name of a rank, in order."""
        found: list[Interval] = []
        begin = self.windows.get(rank, 0)
        for entry in os.listdir(self.directory):
            if entry.startswith(f"{name}-{rank}-"):
                with open(os.path.join(self.directory, entry), encoding="ascii") as file:
                    pairs = (line.split() for line in file)
                    found += [(max(int(start), begin), int(end)) for start, end in pairs if int(end) > begin]
        return sorted(found)


def happened(trace: Trace, ranks: Sequence[int]) -> float:
    """The seconds of all delays in the training loops of ``ranks``."""
    return sum(end - start for rank in ranks for start, end in trace.intervals("injected", rank)) / 1e9


def exposed(trace: Trace, ranks: Sequence[int]) -> float:
    """The seconds in which the loops of ``ranks`` waited while their worker was delayed."""
    return sum(overlap(trace.intervals("injected", rank), trace.intervals("waits", rank)) for rank in ranks) / 1e9


def overlap(ours: Sequence[Interval], theirs: Sequence[Interval]) -> int:
    """The time that is in both of two sequences of intervals. Each sequence is in order and without overlaps."""
    total = i = j = 0
    while i < len(ours) and j < len(theirs):
        start, end = max(ours[i][0], theirs[j][0]), min(ours[i][1], theirs[j][1])
        total += max(0, end - start)
        if ours[i][1] < theirs[j][1]:
            i += 1
        else:
            j += 1
    return total
