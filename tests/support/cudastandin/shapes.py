"""How the ranks are parallel. Each builder returns a model, and a function that makes the passes of a step."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from cudastandin.plan import LATE, Plan

WIDTH, BLOCKS, MICROBATCHES = 512, 4, 4
Passes = Callable[[torch.Tensor], "torch.Tensor | None"]
Built = tuple[Any, Passes]


class Spin(torch.autograd.Function):
    """Keeps the device busy for a known time, in both passes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ms: float) -> torch.Tensor:
        ctx.ms = ms
        torch.cuda._sleep(int(ms * 1e6))
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        torch.cuda._sleep(int(2 * ctx.ms * 1e6))
        return grads[0], None


class Block(nn.Module):
    def __init__(self, ms: float, operations: int = 0, *, buffered: bool = False):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.ms, self.operations = ms, operations
        if buffered:
            self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        for _ in range(self.operations):
            x = x * 1.0
        return Spin.apply(x, self.ms)  # pyright: ignore[reportReturnType]


def forward_ms(plan: Plan) -> float:
    """Device time of a block of this rank."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    return plan.forward_ms * (plan.slower if rank == min(LATE, size - 1) else 1.0)


def blocks(plan: Plan, *, buffered: bool = False) -> nn.Sequential:
    torch.manual_seed(7)
    ms = forward_ms(plan)
    return nn.Sequential(*(Block(ms, plan.operations, buffered=buffered) for _ in range(BLOCKS)))


def passes_of(model: Callable[[torch.Tensor], torch.Tensor]) -> Passes:
    def passes(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return passes


def single(plan: Plan) -> Built:
    model = blocks(plan).cuda()
    return model, passes_of(model)


def _ddp(plan: Plan, *, buffered: bool = False, **options: Any) -> Built:
    inner = blocks(plan, buffered=buffered).cuda()
    model = nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=1, **options)
    return model, passes_of(model)


def ddp(plan: Plan) -> Built:
    return _ddp(plan)


def ddp_views(plan: Plan) -> Built:
    return _ddp(plan, gradient_as_bucket_view=True)


def ddp_static(plan: Plan) -> Built:
    return _ddp(plan, static_graph=True)


def ddp_buffers(plan: Plan) -> Built:
    return _ddp(plan, buffered=True)


def zero(plan: Plan) -> Built:
    """DDP whose optimizer is sharded (loops.py)."""
    return _ddp(plan)


def fsdp1(plan: Plan) -> Built:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(
        blocks(plan),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.cuda.current_device(),
        use_orig_params=True,
    )
    return model, passes_of(model)


def _sharded(plan: Plan, shape: tuple[int, ...], names: tuple[str, ...]) -> Built:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cuda", shape, mesh_dim_names=names)
    model = blocks(plan)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, passes_of(model)


def fsdp2(plan: Plan) -> Built:
    return _sharded(plan, (dist.get_world_size(),), ("shard",))


def hsdp(plan: Plan) -> Built:
    return _sharded(plan, (2, dist.get_world_size() // 2), ("replicate", "shard"))


class Pair(nn.Module):
    """Two layers that two ranks split, and the known time between them."""

    def __init__(self, ms: float, operations: int):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.ms, self.operations = ms, operations

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(x)
        for _ in range(self.operations):
            x = x * 1.0
        spun: Any = Spin.apply(x, self.ms)
        return self.down(spun.tanh())


def tp_dp(plan: Plan) -> Built:
    """Pairs of layers that are split over two ranks, and FSDP2 over the other two."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cuda", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(7)
    model = nn.Sequential(*(Pair(forward_ms(plan), plan.operations) for _ in range(BLOCKS))).cuda()
    for pair in model:
        parallelize_module(pair, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(pair, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model, passes_of(model)


def pipeline(plan: Plan) -> Built:
    """A stage of one block for each rank."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, size = dist.get_rank(), dist.get_world_size()
    model = blocks(plan)[rank : rank + 1].cuda()
    stage = PipelineStage(model, rank, size, torch.device("cuda", torch.cuda.current_device()))
    run = Schedule1F1B(stage, n_microbatches=MICROBATCHES, loss_fn=lambda output, _: output.square().mean())

    def passes(x: torch.Tensor) -> torch.Tensor | None:
        losses: list[torch.Tensor] = []
        if rank == 0:
            run.step(x)
        else:
            run.step(target=x, losses=losses)
        return losses[-1].detach() if losses else None

    return model, passes
