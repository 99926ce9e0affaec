"""Parts that the jobs of several benchmarks are built from: work of known length, and a pipeline of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

WIDTH = 64
"""Of a pipeline stage's layer."""


class Work(nn.Module):
    """Passes its input on after some seconds, like a kernel that takes that long."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return x


def pipeline(seconds: Sequence[float], rank: int, rows: int, microbatches: int) -> Iterator[None]:
    """Trains one stage of a pipeline, without end; yields after each step.

    ``seconds``: for each stage, how long it computes in a step, beyond its own layer. ``rows``: of a batch.
    """
    last = len(seconds) - 1
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), Work(seconds[rank] / microbatches))
    stage = PipelineStage(net, rank, len(seconds), torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=microbatches, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    x = torch.randn(rows, WIDTH)
    while True:
        schedule.step(*((x,) if rank == 0 else ()), **({"target": x, "losses": []} if rank == last else {}))
        optimizer.step()
        optimizer.zero_grad()
        yield
