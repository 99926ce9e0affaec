"""The collector `advice`: recommended changes to the runs of this node."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..collector import Advised, Options
from ..ledgers import LedgerStore
from ..metrics.advice import GAIN, INFO
from ..reading import Absent, Reading

EVERY_SECONDS = 60.0
REST = 50.0
"""The pause between two computations is at least this many times the duration of the last: at most 2 % of one CPU."""
KEPT = 3.0
"""An answer expires after this many times the pause."""
MOST = 3
"""Maximum number of recommended changes per run."""


def create(options: Options) -> AdviceCollector:
    return AdviceCollector(options.advise, options.ledgers)


class AdviceCollector:
    """Computes advice in a thread, because it takes too long for a scrape. A scrape reports the last result."""

    def __init__(self, advise: Callable[[str], list[Advised]] | None, ledgers: LedgerStore):
        self._advise = advise
        self._ledgers = ledgers
        self._worker: threading.Thread | None = None
        self._found: list[Advised] = []
        self._failure: Exception | None = None
        self._rest = EVERY_SECONDS
        self._done = float("-inf")

    def collect(self, reading: Reading) -> None:
        if self._advise is None:
            raise Absent("rules of advice: whoever started this agent brought none")
        age = time.monotonic() - self._done
        if age >= self._rest and not (self._worker and self._worker.is_alive()):
            self._worker = threading.Thread(target=self._work, args=(self._advise,), name="advice", daemon=True)
            self._worker.start()
        if self._failure:
            raise self._failure
        if age > KEPT * self._rest:
            return
        told = {(owner, run): 0 for owner, run, _ in self._ledgers.latest.runs}
        for one in self._found:
            if (one.owner, one.run) not in told:  # the ranks of the run are gone
                continue
            told[one.owner, one.run] += 1
            if told[one.owner, one.run] <= MOST:
                reading.add(INFO, (one.owner, one.run, one.advice, one.family, one.change), 1)
                reading.add(GAIN, (one.owner, one.run, one.advice), one.share)

    def _work(self, advise: Callable[[str], list[Advised]]) -> None:
        begun = time.monotonic()
        try:
            self._found, self._failure = advise(self._ledgers.directory), None
        except Exception as error:  # the next scrape raises it
            self._found, self._failure = [], error
        self._done = time.monotonic()
        self._rest = max(EVERY_SECONDS, REST * (self._done - begun))
