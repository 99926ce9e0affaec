"""The parts of a step of every shape: a dataset that may be slow, and a layer that may use CPU time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from parallel.stamps import Stamps

WIDTH = 128
READ_SECONDS = 0.120
BURN_SECONDS = 0.120


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Whole batches, drawn from their index. A slow one sleeps first, like a read from a slow disk."""

    def __init__(self, stamps: Stamps, rows: int, seed: int, slow: bool) -> None:
        self._stamps, self._rows, self._seed, self._slow = stamps, rows, seed, slow

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        with self._stamps.interval("read") as entry:
            start = time.monotonic_ns()
            if self._slow:
                time.sleep(READ_SECONDS)
            entry["injected"] = time.monotonic_ns() - start if self._slow else 0
            generator = torch.Generator().manual_seed(self._seed + index)
            x = torch.randn(self._rows, WIDTH, generator=generator)
            return x, x.roll(1, dims=1)


def batches(samples: Samples) -> Iterator[Any]:
    return iter(DataLoader(samples, batch_size=None, num_workers=0, sampler=range(len(samples))))


class Section(nn.Module):
    """Returns its input. A slow one uses CPU time first, like a kernel that is slow on this rank only."""

    def __init__(self, stamps: Stamps, seconds: float = 0.0) -> None:
        super().__init__()
        self._stamps, self._ns = stamps, round(seconds * 1e9)

    def forward(self, x: Tensor) -> Tensor:
        with self._stamps.interval("section") as entry:
            start = time.monotonic_ns()
            until = time.thread_time_ns() + self._ns
            while self._ns and time.thread_time_ns() < until:
                pass
            entry["injected"] = time.monotonic_ns() - start if self._ns else 0
        return x
