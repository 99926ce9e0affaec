"""What a bench does to each path, and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ....verdict.accounts import quantile

PARTS: tuple[str, ...] = ("load", "samples", "replay", "shards", "metadata", "checkpoint", "tools")
"""In the order in which they run."""

MOST_CACHED = 0.02
"""A read of which a larger share lay in the page cache does not count as one of storage."""

QUANTILES = (50, 95, 99)

Tell = Callable[[float, str], None]
"""Says how far a part is: a share from 0 to 1, and a note."""


class BenchError(Exception):
    """A sentence for the user."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes in bytes, times in seconds."""

    parts: tuple[str, ...] = PARTS
    seconds: float = 10.0
    """Each measurement ends after so long; 0: it ends when everything is read."""
    workers: int = 4
    batch: int = 32
    files: int = 2000
    """Of the dataset."""
    samples_per_file: int = 1
    sample_bytes: int = 128_000
    sample_deviation: int = 0
    """Standard deviation of the size of a sample."""
    handed_bytes: int = 0
    """What a worker passes on of a sample, at most; 0: all."""
    shard_bytes: int = 64_000_000
    shards: int = 4
    small_files: int = 1000
    checkpoint_bytes: int = 256_000_000
    repeat: int = 3
    """Saves and restores of each format."""
    compute: float = 0.0
    """What a step would compute: the loop sleeps for so long."""
    drop_caches: bool = False
    """Empties the kernel's caches of all files, which is root's right, before a dataset is read."""

    @property
    def dataset_bytes(self) -> int:
        return self.files * self.samples_per_file * self.sample_bytes

    @property
    def room(self) -> int:
        """Bytes that a path must have free: a part removes its files before the next one begins."""
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
    """What an item is, in the plural."""
    seconds: float = 0.0
    each: Sequence[float] = ()
    """How long each item took."""
    cached: float | None = 0.0
    """Share of what is read that lay in the page cache before; None: the file system does not tell."""
    direct: bool = True
    """Whether it is a measurement of storage, and not of what it could be."""
    also: dict[str, Any] | None = None
    percentiles: dict[int, float] | None = None
    """Of how long each item took, where another program has counted them."""

    @property
    def from_cache(self) -> bool:
        return self.cached is not None and self.cached > MOST_CACHED

    def entry(self) -> dict[str, Any]:
        """For the report. What was read from a cache has no speed."""
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
"""What a part reports. A string is a sentence for the user."""
