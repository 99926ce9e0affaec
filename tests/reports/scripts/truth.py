"""What the scripts of public reports share: a clock by name, work, a small model. It does not use whyidle.

`done` writes ``$REPORT_DIR/truth-RANK.json``: what this rank lost by its own clock, from its first request for a batch
on, its last loss, and for how long it queued for a CPU per second on one (`queued`). With ``REPORT_FAST=1``, `work` and
`wait` take no time: the losses of such a run are the same.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
FOLDER = Path(os.environ["REPORT_DIR"])
FAST = os.environ.get("REPORT_FAST") == "1"

torch.set_num_threads(1)
torch.manual_seed(1)
now = time.perf_counter
lost: defaultdict[str, float] = defaultdict(float)
"""Name -> seconds."""
_begun: list[tuple[float, int, int]] = []
_matrix = torch.randn(160, 160, generator=torch.Generator().manual_seed(1))


def start() -> None:
    """Call it at the first request for a batch or, without a loader, before the first forward pass."""
    _begun.append((now(), *_scheduled()))


def _scheduled() -> tuple[int, int]:
    """For how long this thread was on a CPU, and queued for one, ns."""
    on_cpu, queued, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return int(on_cpu), int(queued)


@contextmanager
def clock(name: str) -> Iterator[None]:
    since = now()
    try:
        yield
    finally:
        lost[name] += now() - since


def work(seconds: float) -> None:
    """Computes until this thread has used this CPU time, however busy the machine is."""
    until = time.thread_time() + (0.0 if FAST else seconds)
    while time.thread_time() < until:
        torch.mm(_matrix, _matrix)


def wait(seconds: float) -> None:
    """Blocks, as a read or a request does."""
    time.sleep(0.0 if FAST else seconds)


def model(width: int = 128, depth: int = 3) -> nn.Module:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def parallel(module: nn.Module, **options: Any) -> nn.parallel.DistributedDataParallel:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return nn.parallel.DistributedDataParallel(module, **options)


def optimizer(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), 0.05)


def samples(count: int, width: int = 128) -> TensorDataset:
    """Other samples on each rank, in memory."""
    generator = torch.Generator().manual_seed(7 + RANK)
    inputs = torch.randn(count, width, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 10, (count,), generator=generator))


def batches(steps: int, size: int = 64, width: int = 128) -> DataLoader[Any]:
    """A loader that reads memory and has no workers."""
    return DataLoader(samples(steps * size, width), size)


def sample(index: int, width: int = 128) -> tuple[torch.Tensor, int]:
    return torch.full((width,), index % 7 / 7), index % 10


def timed(loader: Iterable[Any], first: str = "data", rest: str = "data") -> Iterator[Any]:
    """The batches of an epoch. The clock counts waits for them under these names, the first wait under ``first``."""
    name = first
    since = now()
    for batch in loader:
        lost[name] += now() - since
        yield batch
        name, since = rest, now()
    lost[name] += now() - since


def step(
    module: nn.Module, adapt: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor, seconds: float = 0.0
) -> torch.Tensor:
    """A forward pass that takes so long, a backward pass and a step of the optimizer. Returns the loss. The time in
    which this thread had no CPU is lost as `off_cpu`."""
    since = now(), time.thread_time()
    loss = nn.functional.cross_entropy(module(inputs), labels)
    work(seconds)
    adapt.zero_grad()
    loss.backward()
    adapt.step()
    lost["off_cpu"] += now() - since[0] - (time.thread_time() - since[1])
    return loss


def ask() -> None:
    """Tells the runner that it may ask whyidle about this run now."""
    (FOLDER / f"ask-{RANK}").touch()


def done(loss: torch.Tensor, **facts: Any) -> None:
    begun, *before = _begun[0]
    on_cpu, queued = (after - least for after, least in zip(_scheduled(), before, strict=True))
    truth = {"rank": RANK, "wall": now() - begun, "lost": lost, "loss": float(loss.detach()).hex()}
    truth |= {"queued": queued / max(on_cpu, 1), **facts}
    whole = FOLDER / f"truth-{RANK}.new"
    whole.write_text(json.dumps(truth))
    whole.rename(FOLDER / f"truth-{RANK}.json")


def end(loss: torch.Tensor, **facts: Any) -> None:
    """`done`, as the last call of a script that ends well. A rank that exits while another one still has its process
    group may abort in torch's own threads."""
    done(loss, **facts)
    if dist.is_initialized():
        dist.destroy_process_group()
