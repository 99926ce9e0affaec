"""Measures shards: large files that each worker reads from beginning to end, as WebDataset does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from . import caches, loading
from .files import BLOCK, Writer, sync_directory
from .plan import Found, Measure, Plan, Tell

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Shards:
    """An iterable dataset. Worker w of n workers reads the shards w, w + n, w + 2n and so on."""

    paths: tuple[str, ...]

    def __iter__(self) -> Iterator[tuple[Tensor, int, float]]:
        import torch
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        for path in self.paths[worker::workers]:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                while True:
                    begun = time.perf_counter()
                    block = os.read(descriptor, BLOCK)
                    if not block:
                        break
                    yield torch.frombuffer(bytearray(block), dtype=torch.uint8), len(block), time.perf_counter() - begun
            finally:
                os.close(descriptor)


def measure(place: str, plan: Plan, tell: Tell) -> Found:
    """Writes shards and reads them through a DataLoader. Raises OSError."""
    from torch.utils.data import IterableDataset

    class Records(Shards, IterableDataset):  # torch checks the type, but this module must be importable without torch
        pass

    writer, paths = Writer(), []
    begun = time.perf_counter()
    for number in range(plan.shards):
        paths.append(os.path.join(place, f"shard-{number}.tar"))
        writer.write(paths[-1], plan.shard_bytes)
        tell((1 + number) / plan.shards / 2, "writing")
        if plan.seconds and time.perf_counter() - begun > plan.seconds:
            break
    sync_directory(place)
    cached = caches.drop(paths)
    blocks = sum(-(-os.path.getsize(path) // BLOCK) for path in paths)
    loop = loading.run(
        loading.loader(Records(tuple(paths)), replace(plan, batch=1, compute=0.0), False),
        replace(plan, compute=0.0),
        lambda done, _: tell(0.5 + done / 2, "reading"),
        blocks,
    )
    return [
        Measure("shards: write and fsync", writer.bytes, len(writer.each), "shards", writer.seconds, writer.each),
        Measure("shards: read in order", loop.bytes, 0, "", loop.seconds, loop.reads, cached),
    ]
