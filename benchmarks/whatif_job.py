"""What benchmarks/whatif.py trains: two data-parallel ranks, or the stages of a pipeline, with work of known length.

Compute beyond the model's own is a sleep: two cores that others share compute nothing for an equally long time twice.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from work import Work, pipeline

import whyidle

SHARD_BYTES = 1 << 18
ROWS = 4
STAGE_ROWS = 256
MICROBATCHES = 4
WARM = 1
"""Steps that are not measured, as in a replay: connections are made."""


@dataclass(frozen=True)
class Job:
    """What the ranks of one run are told. Times in seconds."""

    steps: int
    data: str
    """A directory of shards."""
    workers: int
    compute: tuple[float, ...]
    """By rank, beyond the model's own, in each step."""
    pipeline: bool = False
    width: int = 512
    """Of a square layer: 1 MB of gradients; 4.2 MB at 1024."""


class _Shards(Dataset[Tensor]):
    """One batch per file, in turns without end, each read cold."""

    def __init__(self, directory: str, width: int):
        self.files = sorted(Path(directory).iterdir())
        self.width = width

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Tensor:
        with open(self.files[index % len(self.files)], "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            packed = b"".join(iter(lambda: file.read(SHARD_BYTES), b""))
        batch = torch.frombuffer(bytearray(packed[: ROWS * self.width]), dtype=torch.uint8)
        return batch.float().view(ROWS, self.width) / 256


def train(job: Job, rank: int, folder: Path) -> None:
    """Trains all steps of a rank, and writes when each of its steps ended: ns of CLOCK_MONOTONIC, one a line."""
    assert whyidle.attach()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=rank, world_size=len(job.compute))
    steps = _pipeline(job, rank) if job.pipeline else _replicas(job, rank)
    ends = [time.monotonic_ns() for _ in steps]
    whyidle.detach()
    (folder / f"ends-{rank}").write_text("\n".join(map(str, ends)))
    dist.barrier()
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()


def _batches(job: Job, rank: int) -> Iterator[Tensor]:
    sampler = range(rank, job.steps * 64, len(job.compute))
    return iter(DataLoader(_Shards(job.data, job.width), batch_size=None, sampler=sampler, num_workers=job.workers))


def _replicas(job: Job, rank: int) -> Iterator[None]:
    model = nn.Sequential(Work(job.compute[rank]), nn.Linear(job.width, job.width))
    net = DistributedDataParallel(model, bucket_cap_mb=1000)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    batches = _batches(job, rank)
    for _ in range(job.steps):
        x = next(batches)
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def _pipeline(job: Job, rank: int) -> Iterator[None]:
    """The first stage loads the batches; like the others, it computes on one that stays the same."""
    batches = _batches(job, rank)
    steps = pipeline(job.compute, rank, STAGE_ROWS, MICROBATCHES)
    for _ in range(job.steps):
        if rank == 0:
            next(batches)
        yield next(steps)
