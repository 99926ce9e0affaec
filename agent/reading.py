"""What one collector has to say at one scrape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .metrics.metric import Metric

Labels = tuple[str, ...]


class Absent(Exception):
    """This node has nothing for the collector to read. Its text says what was looked for."""


class ReadError(NamedTuple):
    """One value, or one device, that could not be read."""

    device: str  # what it belongs to: a device, an interface, a mount; empty if none
    file: str  # the file or the call, without what tells devices apart
    reason: str  # one of files.REASONS, or the word of the library that was called


class Blind(NamedTuple):
    """Something that this agent cannot see here, and what would let it."""

    what: str
    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """The value of a series of a histogram: cumulative counts per bucket, the last for +Inf, and the sum."""

    bounds: tuple[float, ...]  # without +Inf
    counts: Sequence[int]  # one more than bounds
    sum: float


class Reading:
    """Filled by ``Collector.collect``, and thrown away after the scrape: nothing is ever served twice."""

    __slots__ = ("blind_spots", "errors", "samples")

    def __init__(self) -> None:
        self.samples: dict[Metric, dict[Labels, float | Histogram]] = {}
        self.errors: list[ReadError] = []
        self.blind_spots: list[Blind] = []

    def add(self, metric: Metric, labels: Labels, value: float | Histogram) -> None:
        """One sample, in the metric's base unit. The last one of the same labels stands."""
        try:
            self.samples[metric][labels] = value
        except KeyError:
            self.samples[metric] = {labels: value}

    def series(self, metric: Metric) -> dict[Labels, float | Histogram]:
        """Where the samples of one metric go: for collectors that add many in a row."""
        return self.samples.setdefault(metric, {})

    def error(self, device: str, file: str, reason: str) -> None:
        """One value that could not be read; its series is absent from this scrape."""
        self.errors.append(ReadError(device, file, reason))

    def blind(self, what: str, why: str, remedy: str) -> None:
        """Something that cannot be seen as things are. The agent says each once, `whyidle doctor` lists them."""
        self.blind_spots.append(Blind(what, why, remedy))
