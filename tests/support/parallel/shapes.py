"""The parallel shapes, one short function each: how the four ranks share a model and a step.

Each function builds its part of the model and returns ``step(x, y) -> loss or None``: a forward and a backward pass,
with the communication of the shape. What comes before (reading) and after (the optimizer) is the same for all.
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
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, schedules
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from parallel.cases import SHAPES, Shape
from parallel.spec import RANKS
from parallel.stamps import Stamps
from parallel.work import WIDTH, Section

Step = Callable[[Tensor, Tensor], "Tensor | None"]


@dataclass(frozen=True)
class Worker:
    """What a shape needs to build its model."""

    rank: int
    stamps: Stamps
    burn: float
    """Additional seconds of CPU time that this rank uses in each step."""

    def section(self, per_step: int = 1) -> Section:
        return Section(self.stamps, self.burn / per_step)


Built = tuple[nn.Module, Step]


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
    """DDP with all gradients in one bucket. Returns the model, and what to call after the backward pass.

    Its all-reduce begins when the last gradient is ready: one of the first layer, whose hooks know the moment.
    """
    arrived = [0]
    for parameter in net[0].parameters():
        parameter.register_hook(lambda _: arrived.__setitem__(0, time.monotonic_ns()))
    ranks = sorted(dist.get_process_group_ranks(group))
    return DistributedDataParallel(net, process_group=group), lambda: worker.stamps.call("ddp", ranks, arrived[0])


def two_ddp(worker: Worker) -> Built:
    """Two trainings of two ranks each, [0,1] and [2,3], which share only a job."""
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
            with torch.no_grad():  # only the routing: the experts' gradients end at the tokens that they got
                tokens, wanted = exchanged(x), exchanged(y)
            loss = nn.functional.mse_loss(expert(tokens), wanted) + nn.functional.mse_loss(dense(x), y)
        with stamps.interval("backward"):
            loss.backward()
        grad = dense.weight.grad
        assert grad is not None
        dist.all_reduce(grad)
        return loss

    return nn.ModuleList([dense, expert]), forward


def _stamp_pipeline(stamps: Stamps, stage: Any) -> None:
    """Records when a stage computes a microbatch, in which direction, and when it waits for messages."""

    def stamped(original: Callable[..., Any], what: str, **known: Any) -> Callable[..., Any]:
        def call(number: Any, *args: Any, **kwargs: Any) -> Any:
            with stamps.interval(what, **known, **({"microbatch": number} if known else {})):
                return original(number, *args, **kwargs)

        return call

    stage.forward_one_chunk = stamped(stage.forward_one_chunk, "chunk", forward=True)
    stage.backward_one_chunk = stamped(stage.backward_one_chunk, "chunk", forward=False)
    schedules._wait_batch_p2p = stamped(schedules._wait_batch_p2p, "messages")


def _pipeline(worker: Worker, shape: Shape, schedule: Any, group: Any, stage_number: int, net: nn.Module) -> Step:
    stage = PipelineStage(net, stage_number, shape.stages, torch.device("cpu"), group=group)
    _stamp_pipeline(worker.stamps, stage)
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


BUILDERS: dict[str, Callable[[Worker], Built]] = {
    "fsdp2": fsdp2,
    "hsdp": hsdp,
    "tp-dp": tp_dp,
    "two-ddp": two_ddp,
    "experts": experts,
    "pp-dp": pp_dp,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
}
