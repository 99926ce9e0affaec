"""Counters of live ledgers that never fall.

A rank corrects its account: time that first counted as compute turns out to be blocked, queued, or part of an
evaluation, and moves to that cause when its step is closed. Prometheus takes a counter that falls for one that has
begun again, and adds all of it once more. So each counter keeps the highest value that was read, until the rank has
passed it. Until then, the sum over the causes is larger than the time by what was corrected since the last look.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from operator import gt

from ..ledger.reader import Ledger
from .run_sums import FileKey


class Rising:
    """Remembers the highest values of some words of each ledger."""

    def __init__(self, words: Iterable[str]):
        self._names = tuple(dict.fromkeys(words))
        self._highest: dict[FileKey, list[tuple[int, ...]]] = {}

    def keep(self, ledgers: Iterable[Ledger]) -> None:
        """Changes the words of these ledgers, which were just read, to the highest values."""
        before, self._highest = self._highest, {}
        for ledger in ledgers:
            words = ledger.words
            values = [words[name] for name in self._names]
            identity = ledger.path, ledger.created_unix_ns
            for at, was in enumerate(before.pop(identity, ())):
                if any(map(gt, was, values[at])):
                    values[at] = words[self._names[at]] = tuple(map(max, was, values[at]))
            self._highest[identity] = values
        # One that cannot be read at the moment comes back.
        self._highest.update((each, before[each]) for each in before if os.path.lexists(each[0]))
