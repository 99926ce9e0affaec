"""The training job of benchmarks/study.py: data-parallel ranks that load, restore, read, compute, exchange and save.

Compute is a sleep, because on a machine with two shared cores real compute takes a different time each time.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import whyidle

SAMPLE_BYTES = 1 << 16
SAMPLES = 256
BATCH = 8
INDEX_BYTES = 2 << 20
WIDTH = 1024
"""The width of a square layer. Its gradients are 4.2 MB, and a checkpoint with its momentum is 8.4 MB."""
SAVE_EVERY = 10
COMPUTE_SECONDS = 0.03


@dataclass(frozen=True)
class Job:
    steps: int
    ranks: int
    place: Path
    """The folder of the dataset and the checkpoints."""


def prepare(place: Path) -> None:
    """Writes a dataset, and a checkpoint from which the training starts."""
    (place / "data").mkdir(parents=True)
    for number in range(SAMPLES):
        (place / "data" / f"{number:04}").write_bytes(os.urandom(SAMPLE_BYTES))
    (place / "index").write_bytes(os.urandom(INDEX_BYTES))
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = _optimizer(model)
    model(torch.zeros(1, WIDTH)).sum().backward()
    optimizer.step()
    torch.save(_state(model, optimizer), place / "start.pt")


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


class _Samples(Dataset[Tensor]):
    """A dataset with a file per sample. It repeats its files, and reads each of them without the page cache."""

    def __init__(self, place: Path):
        _read_cold(place / "index")
        self.files = sorted((place / "data").iterdir())

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Tensor:
        packed = _read_cold(self.files[index % len(self.files)])
        return torch.frombuffer(bytearray(packed[:WIDTH]), dtype=torch.uint8).float() / 256


def _read_cold(path: Path) -> bytes:
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return b"".join(iter(lambda: file.read(1 << 20), b""))


def train(job: Job, rank: int) -> None:
    assert whyidle.attach()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=rank, world_size=job.ranks)
    with whyidle.phase("data"):
        samples = _Samples(job.place)
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = _optimizer(model)
    with open(job.place / "start.pt", "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    state = torch.load(job.place / "start.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    net = DistributedDataParallel(model, bucket_cap_mb=1000)
    sampler = range(rank, job.steps * BATCH * job.ranks, job.ranks)
    loader = DataLoader(samples, batch_size=BATCH, sampler=sampler, num_workers=1)
    for step, batch in enumerate(loader, 1):
        time.sleep(COMPUTE_SECONDS)
        net(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % SAVE_EVERY == SAVE_EVERY // 2:  # never after the last step
            torch.save(_state(model, optimizer), job.place / "save.pt")
    whyidle.detach()
    dist.barrier()
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
