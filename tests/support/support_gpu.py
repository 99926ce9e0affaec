"""A collector of GPUs over a simulated node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fake_node.nvml import Node
from support_matrix import Series

from whyidle.agent.collector import Options
from whyidle.agent.collectors.gpu import GpuCollector
from whyidle.agent.files import Roots
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.metrics.gpu import UNHOOKED_CAUSES
from whyidle.agent.reading import Blind, ReadError, Reading

WHOLE = 0
"""A GPU that is not partitioned."""


@dataclass
class Answer:
    series: dict[Series, float] = field(default_factory=dict)
    errors: Counter[ReadError] = field(default_factory=Counter)
    blind: list[Blind] = field(default_factory=list)

    def of(self, gpu: int) -> dict[Series, float]:
        """The series of one GPU and its MIG devices, including those of its device-seconds."""
        return {one: value for one, value in self.series.items() if _gpu_of(one) == str(gpu)}

    def names(self, gpu: int) -> Counter[str]:
        return Counter(name.removeprefix("whyidle_gpu_") for name, _ in self.of(gpu))

    def value(self, name: str, *labels: str) -> float:
        """The only sample with this name and these labels."""
        [value] = [value for (n, have), value in self.series.items() if n == name and set(labels) <= set(have)]
        return value

    def seconds(self, device: str) -> tuple[float, ...]:
        found = [self.value("whyidle_device_seconds_total", device, cause) for cause in UNHOOKED_CAUSES]
        return tuple(round(value, 6) for value in found)


def _gpu_of(series: Series) -> str:
    name, labels = series
    return labels[4].split(":")[1] if name == "whyidle_device_seconds_total" else labels[0]


class Bench:
    """A node and its collector."""

    def __init__(self, directory: Path, gpus: int = 2, mig: int | None = -1):
        self.directory = directory
        self.node = Node(directory, gpus, mig=mig)
        self.roots = Roots(str(directory / "proc"), str(directory / "sys"))
        self.ledgers = LedgerStore(str(directory / "ledgers"), 900.0)
        self.collector = self.new()

    def new(self) -> GpuCollector:
        return GpuCollector(Options(self.ledgers, self.roots), clock=lambda: self.node.clock or 0.0)

    def look(self, after: float = 0.0) -> Answer:
        if after:
            self.node.advance(after)
        self.ledgers.look()
        reading = Reading()
        self.collector.collect(reading)
        samples = {
            (metric.name, labels): value
            for metric, samples in reading.samples.items()
            for labels, value in samples.items()
        }
        return Answer(samples, Counter(reading.errors), reading.blind_spots)  # pyright: ignore[reportArgumentType]


def looking(directory: Path, mig: int | None = -1) -> Iterator[Bench]:
    """Within it, the simulated library is loaded. ``mig``: the GPU that is partitioned, -1 the last, or None."""
    bench = Bench(directory, mig=mig)
    with bench.node.loaded():
        yield bench
