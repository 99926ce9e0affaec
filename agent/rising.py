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
        self._last: dict[FileKey, Ledger] = {}

    def keep(self, ledgers: Iterable[Ledger]) -> None:
        """Changes the words of these ledgers, which were just read, to the highest values."""
        before, self._last = self._last, {}
        for ledger in ledgers:
            identity = ledger.path, ledger.created_unix_ns
            self._last[identity] = ledger
            if (last := before.pop(identity, None)) is None:
                continue
            for name in self._names:
                was, now = last.words[name], ledger.words[name]
                if any(map(gt, was, now)):
                    ledger.words[name] = tuple(map(max, was, now))
        # One that cannot be read at the moment comes back.
        self._last.update((identity, ledger) for identity, ledger in before.items() if os.path.lexists(ledger.path))
