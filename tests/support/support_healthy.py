"""A day of a healthy training, simulated: which phase each rank is in at any moment.

Ranks are late, save, evaluate and wait for data, sometimes for minutes, and the run restarts. Everything goes on.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from support_positions import SECOND, WORLD, Group, position

from whyidle.ledger.causes import STEP_BUCKETS_SECONDS
from whyidle.ledger.reader import Ledger
from whyidle.verdict.facts import Facts, Process, Thread

DAY = 86400.0
RANKS = 4


@dataclass
class _Timeline:
    """The changes of one rank: moment, phase, calls in the world, attempt."""

    moments: list[float] = field(default_factory=list)
    states: list[tuple[str, int, int]] = field(default_factory=list)

    def enter(self, moment: float, phase: str, calls: int, attempt: int) -> None:
        self.moments.append(moment)
        self.states.append((phase, calls, attempt))


# phase -> (how often, in steps; shortest and longest, in seconds; whether only rank 0 does it)
EVENTS: dict[str, tuple[int, float, float, bool]] = {
    "checkpoint": (500, 5.0, 290.0, True),
    "eval": (900, 5.0, 200.0, True),
    "data": (150, 0.5, 28.0, False),
    "host": (300, 0.5, 25.0, False),
    "compile": (5000, 10.0, 120.0, False),
}


class Day:
    def __init__(self, seed: int):
        self._random = random.Random(seed)
        self._ranks = [_Timeline() for _ in range(RANKS)]
        self._longest: tuple[list[float], list[float]] = ([], [])  # moment, and the longest step until then
        at, attempt = 0.0, 0
        while at < DAY:
            at = self._attempt(at, attempt, at + self._random.uniform(2000.0, 40000.0))
            attempt += 1

    def _attempt(self, begin: float, attempt: int, end: float) -> float:
        chance = self._random
        base = chance.uniform(0.3, 4.0)
        times = [begin + chance.uniform(0.0, 5.0) for _ in range(RANKS)]
        for timeline, moment in zip(self._ranks, times, strict=True):
            timeline.enter(moment, "startup", 0, attempt)
        times = [moment + chance.uniform(30.0, 290.0) for moment in times]
        calls, last = 0, max(times)
        while last < end:
            calls += 1
            entered = []
            for rank, timeline in enumerate(self._ranks):
                moment = times[rank]
                for phase, (often, least, most, first) in EVENTS.items():
                    if not chance.randrange(often) and (not first or rank == 0):
                        timeline.enter(moment, phase, calls - 1, attempt)
                        moment += chance.uniform(least, most)
                timeline.enter(moment, "compute", calls - 1, attempt)
                moment += base * chance.uniform(0.9, 1.3)
                timeline.enter(moment, "collective", calls, attempt)
                entered.append(moment)
            now = max(entered) + base * chance.uniform(0.01, 0.2)
            self._longest[0].append(now)
            self._longest[1].append(max(now - last, self._longest[1][-1] if calls > 1 else 0.0))
            last, times = now, [now] * RANKS
        return last

    def moments(self, every: float) -> Iterator[tuple[int, list[Ledger], dict[int, Facts]]]:
        """Moments of the day, with the ledgers then, and what is known about the processes."""
        at = 400.0
        while at < DAY:
            at += every * self._random.uniform(0.5, 1.5)
            yield self.at(at)

    def at(self, moment: float) -> tuple[int, list[Ledger], dict[int, Facts]]:
        now = int((moment + 1000.0) * SECOND)
        ledgers, facts = [], {}
        for rank, timeline in enumerate(self._ranks):
            index = bisect_right(timeline.moments, moment) - 1
            phase, calls, attempt = timeline.states[index]
            seconds = moment - timeline.moments[index]
            within = WORLD if phase == "collective" else 0
            more = {"step_buckets": self._buckets(moment), "attempt": attempt, "now": now}
            ledgers.append(
                position(rank, phase, seconds, Group(WORLD, calls, RANKS), within=within, world=RANKS, **more)
            )
            facts[rank] = self._facts(rank, phase)
        return now, ledgers, facts

    def _buckets(self, moment: float) -> list[int]:
        index = bisect_right(self._longest[0], moment) - 1
        counts = [0] * (len(STEP_BUCKETS_SECONDS) + 1)
        if index >= 0:
            counts[bisect_right(STEP_BUCKETS_SECONDS, self._longest[1][index])] = 1
        return counts

    def _facts(self, rank: int, phase: str) -> Facts:
        """A rank that waits for others does nothing, and one that waits for data or a service may not either."""
        idle = phase in ("collective", "host") or (phase == "data" and self._random.random() < 0.5)
        state = "S" if idle else self._random.choice("RDS")
        main = Thread(100 + rank, "python", state, "futex_do_wait" if idle else "", "futex" if idle else "")
        return Facts(Process(100 + rank, state, (main,), 0.0 if idle else 0.9, 0))
