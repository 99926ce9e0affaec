"""The training job of benchmarks/study.py: data-parallel ranks train a language model, and time it themselves."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from study_model import LanguageModel, loss
from study_text import Windows
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import whyidle

BATCH = 16
SAVE_EVERY = 10
START, SAVE = "start.pt", "save.pt"


@dataclass(frozen=True)
class Job:
    steps: int
    ranks: int
    data: tuple[Path, ...]
    """The folder of the shards, for each rank."""
    checkpoints: tuple[Path, ...]
    """The folder of the checkpoints, for each rank."""
    groups: tuple[Path, ...]
    """The folders of the control groups that all ranks join."""


@dataclass
class Clock:
    """What a rank measures itself. All times in seconds, one for each step unless a comment says otherwise."""

    steps: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    """For each window of tokens, in the data worker."""
    saves: list[float] = field(default_factory=list)
    """For each checkpoint."""
    losses: list[float] = field(default_factory=list)
    """In nats."""
    restore: float = 0.0
    total: float = 0.0

    @contextlib.contextmanager
    def timed(self, to: list[float]) -> Iterator[None]:
        began = time.monotonic()
        yield
        to.append(time.monotonic() - began)


def write_start(folder: Path) -> None:
    """Writes a checkpoint from which the training starts."""
    torch.manual_seed(0)
    model = LanguageModel()
    optimizer = _optimizer(model)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()  # Adam makes its state in its first step
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(_state(model, optimizer), folder / START)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def train(job: Job, rank: int, clocks: Path) -> None:
    """Trains all steps of a rank, and writes its clock to ``clocks``."""
    for group in job.groups:
        (group / "cgroup.procs").write_text("0")
    clock, began = Clock(), time.monotonic()
    assert whyidle.attach()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=job.ranks)
    model = LanguageModel()
    optimizer = _optimizer(model)
    _restore(model, optimizer, job.checkpoints[rank] / START, clock)
    net = DistributedDataParallel(model)
    _steps(job, rank, net, optimizer, clock)
    clock.total = time.monotonic() - began
    whyidle.detach()
    clocks.joinpath(f"clock-{rank}.json").write_text(json.dumps(asdict(clock)))
    dist.barrier()
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()


def _steps(job: Job, rank: int, net: nn.Module, optimizer: torch.optim.Optimizer, clock: Clock) -> None:
    with whyidle.phase("data"):
        windows = Windows(job.data[rank])
    sampler = DistributedSampler(windows, job.ranks, rank, seed=0)
    batches = iter(DataLoader(windows, batch_size=BATCH, sampler=sampler, num_workers=1, drop_last=True))
    for step in range(1, job.steps + 1):
        with clock.timed(clock.steps):
            with clock.timed(clock.waits):
                tokens, seconds = next(batches)
            clock.reads += seconds.tolist()
            error = loss(net, tokens)
            error.backward()
            optimizer.step()
            optimizer.zero_grad()
            clock.losses.append(error.item())
            if rank == 0 and step % SAVE_EVERY == SAVE_EVERY // 2:  # never after the last step
                with clock.timed(clock.saves):
                    _save(net, optimizer, job.checkpoints[rank] / SAVE)


def _restore(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path, clock: Clock) -> None:
    began = time.monotonic()
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    clock.restore = time.monotonic() - began


class _Synced(io.FileIO):
    """A file that torch.save, which flushes it at the end, writes to the disk before it returns."""

    def flush(self) -> None:
        super().flush()
        os.fsync(self.fileno())


def _save(net: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    written = path.with_suffix(".new")
    with _Synced(written, "w") as file:
        torch.save(_state(net, optimizer), file)
    written.replace(path)
