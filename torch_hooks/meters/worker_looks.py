"""Looks at what the workers of a loader are doing at the same moment, when the loop begins to wait for one of them.

Several workers that are blocked together may read in parallel, or may wait for one lock. In the second case, more
workers would not help.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from ...ledger.doing import DOING, doing
from ...ledger.layout import WORD_AT

EVERY_NS = 100_000_000
MOST_WORKERS = 4
"""The most workers that a look takes in. Each costs some 10 µs."""
LOOKS_AT = WORD_AT["worker_looks"][0]
TOGETHER_AT, PARALLEL_AT = WORD_AT["together_looks"][0], WORD_AT["parallel_looks"][0]
_KIND = {name: number for number, name in enumerate(DOING)}


class WorkerLooks:
    """The looks at the workers of one iterator."""

    __slots__ = ("_due_ns", "_found")

    def __init__(self) -> None:
        self._due_ns = 0
        self._found: list[str] = []

    def due(self) -> bool:
        return time.monotonic_ns() >= self._due_ns

    def look(self, pids: Iterable[int]) -> None:
        """Looks at workers that are making a batch."""
        self._due_ns = time.monotonic_ns() + EVERY_NS
        self._found = [kind for _, pid in zip(range(MOST_WORKERS), pids, strict=False) if (kind := doing(pid))]

    def take(self) -> list[tuple[int, int]]:
        """Returns the last look as (index of a word of the ledger, by how much it grows). Call it after a long wait."""
        found, self._found = self._found, []
        return changes(found)

    def forget(self) -> None:
        """The wait was short: nobody was made to wait by what was seen."""
        self._found = []


def changes(found: list[str]) -> list[tuple[int, int]]:
    """``found``: what each worker was doing, as one of DOING."""
    words = [(LOOKS_AT + _KIND[kind], 1) for kind in found]
    if len(found) >= 2:
        words.append((TOGETHER_AT, 1))
        if sum(kind != "lock" for kind in found) >= 2:
            words.append((PARALLEL_AT, 1))
    return words
