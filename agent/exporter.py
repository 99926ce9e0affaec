"""Answers scrapes: asks all collectors, updates the agent's own metrics and renders the text."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from .collector import Collector
from .exposition import Exposition
from .fence import Fences
from .log import Log
from .metrics import METRICS
from .own import OwnCounters
from .reading import Reading

DEADLINE_SECONDS = 2.0
SCRAPE_SECONDS = 8.0
"""How long a round may take in total: less than the default scrape timeout of Prometheus, 10 s."""


@dataclass(slots=True)
class Round:
    """One round through all collectors, and its text once a scrape has asked for it."""

    until: float  # monotonic clock; the round ends then, even if it is not done
    done: threading.Event = field(default_factory=threading.Event)
    readings: list[Reading] = field(default_factory=list)
    texts: dict[bool, bytes] = field(default_factory=dict)
    failure: Exception | None = None


class Exporter:
    """Answers scrapes. Thread-safe: scrapes that arrive during a round share its answer.

    An answer contains only values that were read in its round, never values of earlier rounds.
    """

    def __init__(self, collectors: dict[str, Collector], log: Log, deadline_seconds: float = DEADLINE_SECONDS):
        self._fences = Fences(collectors, deadline_seconds)
        self._books = OwnCounters(self._fences.names, log)
        self._exposition = Exposition()
        self._lock = threading.Lock()
        self._rendering = threading.Lock()
        self._current: Round | None = None
        self._last_round = float("-inf")
        self.ready = False
        """Whether a round has been completed."""

    def scrape(self, *, openmetrics: bool = False, seconds: float = SCRAPE_SECONDS) -> bytes:
        """The answer to one scrape. Reading takes at most ``seconds``, then the text is rendered: values that have not
        been read by then are left out. If several scrapes share a round, the shortest limit applies.
        """
        found = self._round(seconds)
        with self._rendering:
            text = found.texts.get(openmetrics)
            if text is None:
                text = found.texts[openmetrics] = self._render(found.readings, openmetrics)
        return text

    def keep_up(self, at_least_every_seconds: float) -> None:
        """Asks the collectors if the last round is that long ago: some integrate values that hardware keeps briefly."""
        if time.monotonic() - self._last_round >= at_least_every_seconds:
            self._round(SCRAPE_SECONDS)

    def close(self) -> None:
        self._fences.close()

    def _round(self, seconds: float) -> Round:
        until = time.monotonic() + seconds
        with self._lock:
            mine = self._current is None
            found = self._current = self._current or Round(until)
            found.until = min(found.until, until)
        if mine:
            self._lead(found)
        else:
            found.done.wait()
        if found.failure:
            raise found.failure
        return found

    def _lead(self, found: Round) -> None:
        try:
            results = self._fences.round(lambda: found.until)
            found.readings = [result.reading for result in results.values() if result.reading]
            found.readings.append(self._books.enter(results))
            self.ready = True
        except Exception as error:
            found.failure = error
        finally:
            self._last_round = time.monotonic()
            with self._lock:
                self._current = None
            found.done.set()

    def _render(self, readings: list[Reading], openmetrics: bool) -> bytes:
        body = self._exposition.render(METRICS, [reading.samples for reading in readings], openmetrics=openmetrics)
        return (body + ("# EOF\n" if openmetrics else "")).encode()
