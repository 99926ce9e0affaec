"""What one collector reads at one scrape: samples, read errors, and what it cannot see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .metrics.metric import Metric

Labels = tuple[str, ...]


class Absent(Exception):
    """The node has nothing for the collector to read. The message says what was looked for."""


class ReadError(NamedTuple):
    """One value, or one device, that could not be read."""

    device: str  # the device, interface or mount that it belongs to, or ""
    file: str  # the file or call, without the part that differs between devices
    reason: str  # one of files.REASONS, or the error name of the library that was called


class Blind(NamedTuple):
    """Something that the agent cannot see on this node, why, and what to do about it."""

    what: str
    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """The value of one series of a histogram: cumulative counts per bucket (the last is +Inf) and the sum."""

    bounds: tuple[float, ...]  # without +Inf
    counts: Sequence[int]  # one more than bounds
    sum: float


class Reading:
    """Filled by ``Collector.collect``, and discarded after the scrape, so that no value is served twice."""

    __slots__ = ("blind_spots", "errors", "samples")

    def __init__(self) -> None:
        self.samples: dict[Metric, dict[Labels, float | Histogram]] = {}
        self.errors: list[ReadError] = []
        self.blind_spots: list[Blind] = []

    def add(self, metric: Metric, labels: Labels, value: float | Histogram) -> None:
        """Adds a sample, in the metric's base unit. It replaces an earlier sample with the same labels."""
        try:
            self.samples[metric][labels] = value
        except KeyError:
            self.samples[metric] = {labels: value}

    def series(self, metric: Metric) -> dict[Labels, float | Histogram]:
        """The samples of one metric, to add to directly. For collectors that add many in a row."""
        return self.samples.setdefault(metric, {})

    def error(self, device: str, file: str, reason: str) -> None:
        """Reports a value that could not be read. Its series is absent from this scrape."""
        self.errors.append(ReadError(device, file, reason))

    def blind(self, what: str, why: str, remedy: str) -> None:
        """Reports something that the agent cannot see. The agent logs each once, and `whyidle doctor` lists them."""
        self.blind_spots.append(Blind(what, why, remedy))
