"""The plan of a storage bench, and the form of its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ....verdict.accounts import quantile

PARTS: tuple[str, ...] = ("load", "samples", "replay", "shards", "metadata", "checkpoint", "tools")
"""In the order in which they run."""

MOST_CACHED = 0.02
"""If a larger share of the data was in the page cache, a read does not count as a measurement of storage."""

QUANTILES = (50, 95, 99)

Tell = Callable[[float, str], None]
"""Reports the progress of a part: a share from 0 to 1, and a note."""


class BenchError(Exception):
    """The bench cannot go on. The message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure on each path. Sizes in bytes, times in seconds."""

    parts: tuple[str, ...] = PARTS
    seconds: float = 10.0
    """When each measurement ends; 0 means that it ends when everything is read."""
    workers: int = 4
    batch: int = 32
    files: int = 2000
    """The files of the dataset."""
    samples_per_file: int = 1
    sample_bytes: int = 128_000
    sample_deviation: int = 0
    """The standard deviation of the size of a sample."""
    handed_bytes: int = 0
    """The most bytes of a sample that a worker passes to the loop; 0 means all."""
    shard_bytes: int = 64_000_000
    shards: int = 4
    small_files: int = 1000
    checkpoint_bytes: int = 256_000_000
    repeat: int = 3
    """The number of saves and restores in each format."""
    compute: float = 0.0
    """How long a step computes. The loop sleeps instead."""
    drop_caches: bool = False
    """Whether to empty the kernel's caches of all files before a dataset is read, which only root may do."""

    @property
    def dataset_bytes(self) -> int:
        return self.files * self.samples_per_file * self.sample_bytes

    @property
    def room(self) -> int:
        """The bytes that must be free on a path. Each part removes its files before the next one begins."""
        tools = max(self.shard_bytes, self.sample_bytes)
        needs = {
            "load": self.dataset_bytes,
            "samples": self.dataset_bytes,
            "replay": 0,
            "shards": self.shards * self.shard_bytes,
            "metadata": self.small_files * 4096,
            "checkpoint": self.checkpoint_bytes,
            "tools": tools,
        }
        return round(1.05 * max(needs[part] for part in self.parts)) + (1 << 20)


@dataclass(slots=True)
class Measure:
    """One measurement: a line of the report. Times in seconds."""

    name: str
    bytes: int = 0
    items: int = 0
    unit: str = ""
    """The name of the items, in the plural."""
    seconds: float = 0.0
    each: Sequence[float] = ()
    """How long each item took."""
    cached: float | None = 0.0
    """The share of the data that was in the page cache before the read; None if the file system does not report it."""
    direct: bool = True
    """Whether storage itself is measured, and not a loop without storage or the blocking part of a save."""
    also: dict[str, Any] | None = None
    """More fields for the report."""
    percentiles: dict[int, float] | None = None
    """Percentiles of the times of items, if another program has computed them."""

    @property
    def from_cache(self) -> bool:
        return self.cached is not None and self.cached > MOST_CACHED

    def entry(self) -> dict[str, Any]:
        """The measurement as a dictionary for the report. Data that came from a cache has no speed."""
        known = self.seconds > 0 and not self.from_cache
        ordered = sorted(self.each)
        percentiles = self.percentiles or {q: quantile(ordered, q / 100) for q in QUANTILES if ordered}
        return {
            "name": self.name,
            "bytes": self.bytes,
            "items": self.items,
            "unit": self.unit,
            "seconds": self.seconds if known else None,
            "bytes_per_second": self.bytes / self.seconds if known and self.bytes else None,
            "items_per_second": self.items / self.seconds if known and self.items else None,
            **{f"p{q}_seconds": percentiles.get(q) if known else None for q in QUANTILES},
            "from_cache": self.from_cache,
            "cached_share": self.cached,
            "of_storage": self.direct,
            **(self.also or {}),
        }


Found = Sequence[Measure | str]
"""The results of a part. A string is a sentence for the user."""
