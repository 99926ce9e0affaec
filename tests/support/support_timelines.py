"""Random runs, second by second: the values of their counters at each scrape, and the contents of their ledgers at the
end.

A rank's time is a sequence of segments. While it trains, its counters grow steadily. A long phase is counted at its
end, and is open until then. When a rank has waited for a late rank, the reason of that rank is known some time after
the wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from hypothesis import strategies as st
from support_ledgers import Spec

from whyidle.ledger.causes import CAUSE_FAMILY

SCRAPE_SECONDS = 15
LOOK_SECONDS = 30 * 60
WAITS = ("straggler", "pipeline")
PHASES = {"checkpoint": "checkpoint_write", "host": "host", "restore": "checkpoint_read"}
"""Long phases, and the cause that they count as."""
TRAINS = ("compute", "recompute", "data_read", "data_cpu", "network", "collective", "host_gc", "unattributed", *WAITS)
MADE_LATE = ("storage", "cpu", "network", "straggler")

Seconds = dict[str, float]


@dataclass(frozen=True)
class Segment:
    """``seconds`` of training, divided by cause, or one phase that is open for that time."""

    seconds: float
    parts: Seconds
    phase: str = ""


@dataclass(frozen=True)
class Attempt:
    """One process of a rank, from ``start`` on, in seconds."""

    start: float
    segments: list[Segment]
    node: str

    @property
    def end(self) -> float:
        return self.start + sum(segment.seconds for segment in self.segments)

    def spent(self, moment: float) -> Seconds:
        """The seconds that are counted at a moment, by cause."""
        found: Seconds = {}
        begin = self.start
        for segment in self.segments:
            passed = min(max(moment - begin, 0.0), segment.seconds)
            if segment.phase and passed < segment.seconds:
                passed = 0.0
            for cause, part in segment.parts.items():
                found[cause] = found.get(cause, 0.0) + passed * part
            begin += segment.seconds
        return found

    def open(self, moment: float) -> tuple[str, float]:
        """The phase that is open at a moment, and for how long."""
        begins = [self.start, *accumulate((segment.seconds for segment in self.segments), initial=self.start)][1:]
        for begin, segment in zip(begins, self.segments, strict=False):
            if begin <= moment < begin + segment.seconds:
                return (segment.phase, moment - begin) if segment.phase else ("compute", 0.0)
        return "", 0.0


@dataclass(frozen=True)
class Rank:
    rank: int
    attempts: list[Attempt]
    lag: float
    """The delay in seconds until it knows what made the ranks late that it waited for."""
    known: float
    """The share of these reasons that it learns at all."""
    made_late: Seconds
    """The same by family, as parts of 1."""

    def waited_for(self, attempt: Attempt, moment: float) -> Seconds:
        spent = attempt.spent(min(moment, attempt.end) - self.lag)
        waited = self.known * sum(spent.get(cause, 0.0) for cause in WAITS)
        return {family: waited * part for family, part in self.made_late.items()}


@dataclass(frozen=True)
class Run:
    owner: str
    name: str
    ranks: list[Rank] = field(default_factory=list)

    def specs(self) -> Iterator[Spec]:
        """Its ledgers at the end."""
        for rank in self.ranks:
            for number, attempt in enumerate(rank.attempts):
                spent = attempt.spent(attempt.end)
                startup = spent.pop("startup")
                yield Spec(
                    run=self.name,
                    owner=self.owner,
                    rank=rank.rank,
                    world_size=8,
                    attempt=number,
                    node=attempt.node,
                    created=1 + number,
                    startup=startup,
                    steps=1,
                    step=spent,
                    waited_for=rank.waited_for(attempt, attempt.end),
                )

    def series(self) -> Iterator[tuple[str, list[float | None]]]:
        """Its series and their values at each scrape, or None without a sample, for earlier agents."""
        for rank in self.ranks:
            for node in dict.fromkeys(attempt.node for attempt in rank.attempts):
                here = [attempt for attempt in rank.attempts if attempt.node == node]
                yield from self._of_rank(rank, here, node)
                up = f'whyidle_collector_up{{job="whyidle", instance="{node}:9838", collector="ranks"}}'
                yield up, [1.0] * len(_scrapes())

    def _of_rank(self, rank: Rank, here: list[Attempt], node: str) -> Iterator[tuple[str, list[float | None]]]:
        name = f'job="whyidle", instance="{node}:9838", owner="{self.owner}", run="{self.name}", rank="{rank.rank}"'
        place = f'{name}, node="{node}", device="cpu"'
        causes = {cause for attempt in here for cause in attempt.spent(attempt.end)} | {"compute"}
        for cause in sorted(causes):
            labels = f'{place}, cause="{cause}", family="{CAUSE_FAMILY[cause]}"'
            yield f"whyidle_device_seconds_total{{{labels}}}", _values(here, lambda one, at: one.spent(at), cause)
        for family in rank.made_late:
            yield (
                f'whyidle_waited_for_seconds_total{{{name}, family="{family}"}}',
                _values(here, rank.waited_for, family),
            )
        yield f"whyidle_rank_info{{{place}}}", [1.0 if at >= here[0].start else None for at in _scrapes()]
        alive = [float(any(one.start <= at < one.end for one in here)) for at in _scrapes()]
        started = zip(alive, _scrapes(), strict=True)
        yield f"whyidle_rank_up{{{name}}}", [up if at >= here[0].start else None for up, at in started]
        for phase in PHASES | {"startup": ""}:
            opened = [max(one.open(at) for one in here) for at in _scrapes()]
            yield (
                f'whyidle_phase_open_seconds{{{place}, phase="{phase}"}}',
                [since if which == phase else None for which, since in opened],
            )


def _scrapes() -> range:
    return range(0, LOOK_SECONDS + 1, SCRAPE_SECONDS)


def _values(here: list[Attempt], counted: Any, key: str) -> list[float | None]:
    return [
        sum(counted(one, at).get(key, 0.0) for one in here if one.start <= at) if at >= here[0].start else None
        for at in _scrapes()
    ]


@st.composite
def _parts(draw: st.DrawFn, names: tuple[str, ...], most: int) -> Seconds:
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=most, unique=True))
    weights = {name: draw(st.integers(1, 16)) for name in chosen}
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


@st.composite
def _segments(draw: st.DrawFn) -> list[Segment]:
    found = [Segment(draw(st.integers(1, 90)), {"startup": 1.0}, "startup")]
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            phase = draw(st.sampled_from(sorted(PHASES)))
            found.append(Segment(draw(st.integers(1, 250)), {PHASES[phase]: 1.0}, phase))
        else:
            found.append(Segment(draw(st.integers(1, 150)), draw(_parts(TRAINS, 4))))
    return found


@st.composite
def _ranks(draw: st.DrawFn, number: int) -> Rank:
    begin, attempts = float(draw(st.integers(0, 240))), []
    for again in range(draw(st.sampled_from((1, 1, 2)))):
        node = f"n{number + 8 * again * draw(st.integers(0, 1))}"
        attempts.append(Attempt(begin, draw(_segments())[: 5 - 2 * again], node))
        begin = attempts[-1].end + draw(st.integers(1, 60))
    return Rank(
        number,
        attempts,
        draw(st.sampled_from((0.0, 7.0, 40.0, 100.0))),
        draw(st.sampled_from((0.0, 0.4, 1.0))),
        draw(_parts(MADE_LATE, 3)),
    )


@st.composite
def worlds(draw: st.DrawFn) -> list[Run]:
    """Two owners have runs with the same names, which must not be added to each other."""
    runs = []
    for owner in ("a", "b"):
        for name in ("r", "s(2)+"):
            ranks = [draw(_ranks(number)) for number in range(draw(st.integers(1, 3)))]
            runs.append(Run(owner, name, ranks))
    return runs
