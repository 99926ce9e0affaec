"""What the host of a rank does besides training: it reads, saves and meets the other ranks, and writes down when."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from accelerators.shapes import WIDTH

BATCH = 8
LATE, SAVES = 1, 0
"""The rank with slow reads or slow compute, and the rank that saves."""
READ_SECONDS, SAVE_SECONDS = 0.06, 0.3


class Samples(Dataset[torch.Tensor]):
    """Samples for ``batches`` batches. Reading a batch takes that many ``seconds``."""

    def __init__(self, batches: int, seconds: float):
        self._batches, self._seconds = batches, seconds

    def __len__(self) -> int:
        return self._batches * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._seconds and index % BATCH == 0:
            time.sleep(self._seconds)
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


class SlowFile(io.BytesIO):
    """A file on a slow disk, once in each save."""

    def flush(self) -> None:
        time.sleep(SAVE_SECONDS)


class Spans:
    """Where the host was and when, in ns of CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self.data: list[tuple[int, int]] = []
        self.save: list[tuple[int, int]] = []
        self.barrier: list[tuple[int, int]] = []

    def batches(self, loader: DataLoader[torch.Tensor]) -> Iterator[torch.Tensor]:
        batches = iter(loader)
        while True:
            begun = time.monotonic_ns()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.data.append((begun, time.monotonic_ns()))
            yield batch


def barrier(spans: Spans) -> None:
    """The host itself waits in it, for a device and for the other ranks."""
    begun = time.monotonic_ns()
    dist.barrier()
    spans.barrier.append((begun, time.monotonic_ns()))


def save(spans: Spans) -> None:
    begun = time.monotonic_ns()
    torch.save({"rank": dist.get_rank()}, SlowFile())
    spans.save.append((begun, time.monotonic_ns()))
