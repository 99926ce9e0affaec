"""Runs on the simulated device of tests/support: benchmarks/advice.py trains them.

A kernel there takes a set time and no CPU, so four ranks can compute at once on two cores. Ranks need no network.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from advice_outcome import LIMIT_SECONDS, Outcome, batch_seconds
from ranks import run_ranks
from torch import nn

import whyidle

WIDTH, ROWS = 16, 4
MESSAGE_MS = 1.0


@dataclass(frozen=True)
class Pipeline:
    """Four stages, or with ``chunks`` as many times four of a part of the layers. Times of a microbatch on a rank."""

    steps: int = 40
    ranks: int = 4
    microbatches: int = 4
    whole: int = 4
    """Microbatches for which the times are said. Others are as much smaller."""
    chunks: int = 1
    forward_ms: float = 25.0
    backward_ms: float = 50.0

    def run(self, folder: Path, names: tuple[str, ...]) -> Outcome:
        return _run(self, self.ranks, folder, names)

    def train(self, rank: int) -> Iterator[None]:
        import simdevice
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

        simdevice.set_collective_time(MESSAGE_MS)
        part = self.whole / self.microbatches / self.chunks
        last = self.ranks * self.chunks - 1
        places = [rank + self.ranks * chunk for chunk in range(self.chunks)]
        layers = [simdevice.Block(WIDTH, self.forward_ms * part, self.backward_ms * part).to("sim") for _ in places]
        stages = [
            PipelineStage(layer, place, last + 1, torch.device("sim"))
            for layer, place in zip(layers, places, strict=True)
        ]

        def loss(output: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            return output.square().mean()

        schedule: Any = (
            Schedule1F1B(stages[0], self.microbatches, loss)
            if self.chunks == 1
            else ScheduleInterleaved1F1B(stages, self.microbatches, loss)  # pyright: ignore[reportArgumentType]
        )
        optimizer = torch.optim.SGD(nn.ModuleList(layers).parameters(), 1e-3)
        x = torch.ones(ROWS * self.microbatches, WIDTH, device="sim")
        while True:
            schedule.step(*((x,) if rank == 0 else ()), **({"target": x, "losses": []} if last in places else {}))
            optimizer.step()
            optimizer.zero_grad()
            torch.accelerator.synchronize()  # else the host of the first stage is steps ahead of its device
            yield


@dataclass(frozen=True)
class Launches:
    """Kernels that are shorter than it takes the host to launch them."""

    steps: int = 60
    kernels: int = 60
    kernel_ms: float = 0.5
    launch_ms: float = 1.5
    graph: bool = False
    """Whether all kernels of a step are captured once, and replayed with one launch, as a CUDA graph is."""

    def run(self, folder: Path, names: tuple[str, ...]) -> Outcome:
        return _run(self, 1, folder, names)

    def train(self, rank: int) -> Iterator[None]:
        import simdevice

        model = nn.Linear(WIDTH, WIDTH).to("sim")
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        x = torch.ones(ROWS, WIDTH, device="sim")
        graph = simdevice.Graph()
        if self.graph:
            with graph.capture():
                self._kernels(simdevice)
        while True:
            if self.graph:
                _launch(self.launch_ms)
                graph.replay()
            else:
                self._kernels(simdevice)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.accelerator.synchronize()
            yield

    def _kernels(self, simdevice: Any) -> None:
        for _ in range(self.kernels):
            _launch(self.launch_ms)
            simdevice.occupy(self.kernel_ms)


def _launch(ms: float) -> None:
    """What the host does before a launch."""
    time.sleep(ms / 1e3)


def _run(job: Pipeline | Launches, ranks: int, folder: Path, names: tuple[str, ...]) -> Outcome:
    main = partial(_train, job, ranks, folder)
    run_ranks(main, names[:ranks], folder, "advice", limit_seconds=LIMIT_SECONDS)
    busy = float((folder / "busy-0").read_text()) if isinstance(job, Launches) else None
    return Outcome(folder / "ledgers", batch_seconds(folder, ranks), busy=busy)


def _train(job: Pipeline | Launches, ranks: int, folder: Path, rank: int) -> None:
    import simdevice

    torch.set_num_threads(1)
    simdevice.load()
    simdevice.set_real_time(True)
    assert whyidle.attach()
    if ranks > 1:
        dist.init_process_group("cpu:gloo,sim:sim", rank=rank, world_size=ranks)
    ends = [time.monotonic_ns() for _ in islice(job.train(rank), job.steps)]
    torch.accelerator.synchronize()
    whyidle.detach()
    busy = sum(entry.end - entry.start for entry in simdevice.schedule())
    (folder / f"busy-{rank}").write_text(str(busy / 1e9))
    (folder / f"ends-{rank}").write_text("\n".join(map(str, ends)))
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()
