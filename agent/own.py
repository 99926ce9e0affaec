"""The agent's own metrics: which collectors answered, what could not be read, and what the agent costs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from .. import __version__
from .fence import Result
from .log import Log
from .metrics import own
from .own_process import OwnProcess
from .reading import Blind, ReadError, Reading

FAILURES: tuple[str, ...] = ("deadline", "hanging", "skipped", "fault")
ERROR_SERIES = 1000
"""Maximum number of series for read errors. Further errors are counted by collector and reason only."""


class OwnCounters:
    """Counters over the lifetime of the agent. Not thread-safe."""

    def __init__(self, names: Iterable[str], log: Log):
        self._log = log
        self._failures: dict[tuple[str, str], int] = {(name, reason): 0 for name in names for reason in FAILURES}
        self._last_answer: dict[str, float] = {}
        self._last_state: dict[str, str] = {}
        self.errors: Counter[tuple[str, ReadError]] = Counter()
        self.blind: dict[tuple[str, Blind], None] = {}
        """What the collectors reported as invisible to them, in the order of the reports."""
        self._process = OwnProcess()

    def enter(self, results: dict[str, Result]) -> Reading:
        """Adds the results of one round to the counters and returns the agent's own samples."""
        reading = Reading()
        now = time.monotonic()
        for name, result in results.items():
            self._tell(name, result)
            if result.state in FAILURES:
                self._failures[name, result.state] += 1
            elif result.state == "absent":
                self._last_answer.pop(name, None)
            elif result.reading:
                self._last_answer[name] = now
                self._take(name, result.reading)
                reading.add(own.DURATION, (name,), round(result.seconds, 6))
            if result.state != "absent":
                reading.add(own.UP, (name,), int(result.state == "up"))
            if name in self._last_answer:
                reading.add(own.AGE, (name,), round(now - self._last_answer[name], 3))
        self._own(reading)
        return reading

    def _tell(self, name: str, result: Result) -> None:
        """Logs changes of the collector's state."""
        if result.state == self._last_state.get(name, "up") or result.state == "hanging":
            return
        self._last_state[name] = result.state
        if result.state == "up":
            self._log.info("the collector answers again", collector=name)
        elif result.state == "absent":
            self._log.info("the collector has nothing to read on this node", collector=name, detail=result.detail)
        else:
            self._log.warning("the collector did not answer", collector=name, reason=result.state, detail=result.detail)

    def _take(self, name: str, reading: Reading) -> None:
        for error in reading.errors:
            key = (name, error)
            if key not in self.errors and len(self.errors) >= ERROR_SERIES:
                key = (name, ReadError("", "", error.reason))
            elif key not in self.errors:
                self._log.warning("cannot be read", collector=name, **error._asdict())
            self.errors[key] += 1
        for blind in reading.blind_spots:
            if (name, blind) not in self.blind:
                self.blind[name, blind] = None
                self._log.info("cannot be seen", collector=name, **blind._asdict())

    def _own(self, reading: Reading) -> None:
        for labels, count in self._failures.items():
            reading.add(own.FAILURES, labels, count)
        for (name, error), count in self.errors.items():
            reading.add(own.READ_ERRORS, (name, *error), count)
        reading.add(own.BUILD, (__version__,), 1)
        self._process.read(reading)
