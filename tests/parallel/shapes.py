"""The parallel shapes, one short function each: how the four ranks share a model and a step.

Each function builds its part of the model and returns ``step(x, y) -> loss or None``: a forward and a backward, with
whatever communication the shape has. What precedes it (reading) and what follows (the optimizer) is the same for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from parallel.spec import RANKS
from parallel.stamps import Stamps
from parallel.work import WIDTH, Section

Step = Callable[[Tensor, Tensor], "Tensor | None"]


@dataclass(frozen=True)
class Worker:
    """What a shape gets to build from."""

    rank: int
    stamps: Stamps
    burn: float
    """Seconds of CPU time that this rank burns in each step, beyond the others."""

    def section(self, per_step: int = 1) -> Section:
        return Section(self.stamps, self.burn / per_step)


Built = tuple[nn.Module, Step]


@dataclass(frozen=True)
class Shape:
    build: Callable[[Worker], Built]
    reads: int
    """The rank whose reads are slow in the case of that name."""
    compute: int
    """The rank whose compute is slow."""
    link: tuple[int, int]
    """The two ranks between which the link is slow: a group, or neighbours in a ring or pipeline."""
    bits_per_second: int
    held: dict[str, tuple[int, ...]]
    """Per fault: the ranks that the fault holds up, the culprit among them. Absent: all ranks."""
    rows: int = 32
    """In a batch of one rank."""
    reader_of: Callable[[int], int] = lambda rank: rank
    """Ranks with the same value read the same data."""
    pipelines: tuple[tuple[int, ...], ...] = ()
    """The ranks of each pipeline, by stage."""
    microbatches: int = 1

    @property
    def stages(self) -> int:
        return len(self.pipelines[0])


def _mse(step_of: Callable[[Tensor], Tensor], stamps: Stamps, after: Callable[[], None] = lambda: None) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        with stamps.interval("forward"):
            loss = nn.functional.mse_loss(step_of(x), y)
        with stamps.interval("backward"):
            loss.backward()
        after()
        return loss

    return step


def _layers(worker: Worker) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), worker.section(), nn.Linear(WIDTH, WIDTH))


def _sharded(worker: Worker, mesh: Any) -> Built:
    net = _layers(worker)
    fully_shard(net[0], mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net, _mse(net, worker.stamps)


def fsdp2(worker: Worker) -> Built:
    """Parameters sharded over all four."""
    return _sharded(worker, init_device_mesh("cpu", (RANKS,)))


def hsdp(worker: Worker) -> Built:
    """Sharded over [0,1] and [2,3]; replicated over [0,2] and [1,3]."""
    return _sharded(worker, init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def tp_dp(worker: Worker) -> Built:
    """Tensor parallel over [0,1] and [2,3]; data parallel, sharded, over [0,2] and [1,3]."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    net = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), worker.section(), nn.Linear(2 * WIDTH, WIDTH))
    parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "3": RowwiseParallel()})
    fully_shard(net, mesh=mesh["dp"])
    return net, _mse(net, worker.stamps)


def _replicated(worker: Worker, net: nn.Sequential, group: Any) -> tuple[nn.Module, Callable[[], None]]:
    """DDP, with all gradients in one bucket -> (the model, what to call after the backward).

    Its all-reduce begins when the last gradient is there: one of the first layer, whose hooks know the moment.
    """
    arrived = [0]
    for parameter in net[0].parameters():
        parameter.register_hook(lambda _: arrived.__setitem__(0, time.monotonic_ns()))
    ranks = sorted(dist.get_process_group_ranks(group))
    return DistributedDataParallel(net, process_group=group), lambda: worker.stamps.call("ddp", ranks, arrived[0])


def two_ddp(worker: Worker) -> Built:
    """Two trainings of two ranks each, [0,1] and [2,3], which share a job and nothing else."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    net, stamp = _replicated(worker, _layers(worker), groups[worker.rank // 2])
    return net, _mse(net, worker.stamps, stamp)


def experts(worker: Worker) -> Built:
    """Tokens go to the experts of a group, [0,1] or [2,3], and back; the rest of the model is data parallel."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group, stamps = groups[worker.rank // 2], worker.stamps
    dense, expert = nn.Linear(WIDTH, WIDTH), nn.Sequential(worker.section(), nn.Linear(WIDTH, WIDTH))

    def exchanged(tokens: Tensor) -> Tensor:
        out = torch.empty_like(tokens)
        dist.all_to_all_single(out, tokens, group=group)
        return out

    def forward(x: Tensor, y: Tensor) -> Tensor:
        with stamps.interval("forward"):
            with torch.no_grad():  # routing alone: the experts' gradients end at the tokens that they were sent
                tokens, wanted = exchanged(x), exchanged(y)
            loss = nn.functional.mse_loss(expert(tokens), wanted) + nn.functional.mse_loss(dense(x), y)
        with stamps.interval("backward"):
            loss.backward()
        grad = dense.weight.grad
        assert grad is not None
        dist.all_reduce(grad)
        return loss

    return nn.ModuleList([dense, expert]), forward


def _pipeline(worker: Worker, shape: Shape, schedule: Any, group: Any, stage_number: int, net: nn.Module) -> Step:
    stage = PipelineStage(net, stage_number, shape.stages, torch.device("cpu"), group=group)
    run = schedule(stage, n_microbatches=shape.microbatches, loss_fn=nn.functional.mse_loss)
    first, last = stage_number == 0, stage_number == shape.stages - 1

    def step(x: Tensor, y: Tensor) -> Tensor | None:
        losses: list[Tensor] = []
        with worker.stamps.interval("schedule"):
            if last:
                run.step(target=y, losses=losses)
            else:
                run.step(*((x,) if first else ()))
        return torch.stack(losses).mean() if last else None

    return step


def _stage(worker: Worker, microbatches: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), worker.section(microbatches))


def gpipe(worker: Worker) -> Built:
    """Four stages; all forwards, then all backwards."""
    shape = SHAPES["gpipe"]
    net = _stage(worker, shape.microbatches)
    return net, _pipeline(worker, shape, ScheduleGPipe, None, worker.rank, net)


def one_f_one_b(worker: Worker) -> Built:
    """Four stages; a backward follows each forward as soon as the pipeline is full."""
    shape = SHAPES["1f1b"]
    net = _stage(worker, shape.microbatches)
    return net, _pipeline(worker, shape, Schedule1F1B, None, worker.rank, net)


def pp_dp(worker: Worker) -> Built:
    """Two stages, [0,2] and [1,3] being pipelines; each stage data parallel, over [0,1] and [2,3]."""
    shape = SHAPES["pp-dp"]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    net, stamp = _replicated(worker, _stage(worker, shape.microbatches), mesh.get_group("dp"))
    step = _pipeline(worker, shape, Schedule1F1B, mesh.get_group("pp"), worker.rank // 2, net)

    def stamped(x: Tensor, y: Tensor) -> Tensor | None:
        loss = step(x, y)
        stamp()
        return loss

    return net, stamped


MBIT = 1_000_000
SHAPES: dict[str, Shape] = {
    "fsdp2": Shape(fsdp2, reads=1, compute=2, link=(1, 2), bits_per_second=20 * MBIT, held={}),
    "hsdp": Shape(hsdp, reads=1, compute=2, link=(0, 2), bits_per_second=5 * MBIT, held={}),
    "tp-dp": Shape(
        tp_dp, reads=1, compute=2, link=(0, 2), bits_per_second=14 * MBIT, held={}, reader_of=lambda rank: rank // 2
    ),
    "two-ddp": Shape(
        two_ddp,
        reads=3,
        compute=1,
        link=(2, 3),
        bits_per_second=10 * MBIT,
        held={"slow-reads": (2, 3), "slow-compute": (0, 1), "slow-link": (2, 3)},
    ),
    "experts": Shape(experts, reads=2, compute=3, link=(0, 1), bits_per_second=24 * MBIT, held={}, rows=256),
    "pp-dp": Shape(
        pp_dp,
        reads=0,
        compute=3,
        link=(0, 1),
        bits_per_second=5 * MBIT,
        held={},
        rows=256,
        reader_of=lambda rank: rank % 2,
        pipelines=((0, 2), (1, 3)),
        microbatches=4,
    ),
    "gpipe": Shape(
        gpipe,
        reads=0,
        compute=2,
        link=(1, 2),
        bits_per_second=18 * MBIT,
        held={},
        rows=256,
        reader_of=lambda rank: 0,
        pipelines=((0, 1, 2, 3),),
        microbatches=4,
    ),
    "1f1b": Shape(
        one_f_one_b,
        reads=0,
        compute=2,
        link=(1, 2),
        bits_per_second=18 * MBIT,
        held={},
        rows=256,
        reader_of=lambda rank: 0,
        pipelines=((0, 1, 2, 3),),
        microbatches=4,
    ),
}
