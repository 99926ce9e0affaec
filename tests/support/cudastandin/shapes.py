"""How the ranks are parallel: each builder returns a model, and a function that makes the passes of a step on a batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from cudastandin.plan import LATE, Plan

WIDTH, BLOCKS = 512, 4
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
    def __init__(self, ms: float, *, buffered: bool = False):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.ms = ms
        if buffered:
            self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Spin.apply(self.linear(x), self.ms)  # pyright: ignore[reportReturnType]


def blocks(plan: Plan, *, buffered: bool = False) -> nn.Sequential:
    torch.manual_seed(7)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    late = rank == min(LATE, size - 1)
    ms = plan.forward_ms * (plan.slower if late else 1.0)
    return nn.Sequential(*(Block(ms, buffered=buffered) for _ in range(BLOCKS)))


def passes_of(model: Callable[[torch.Tensor], torch.Tensor]) -> Passes:
    def passes(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return passes


def single(plan: Plan) -> Built:
    model = blocks(plan).cuda()
    return model, passes_of(model)


def small(plan: Plan) -> Built:
    """Many small operations: the host takes longer to launch them than the device takes to compute them."""
    torch.manual_seed(7)
    model = nn.Sequential(*(nn.Linear(64, WIDTH if n < 0 else 64) for n in range(60)), nn.Linear(64, 64)).cuda()
    return model, lambda x: passes_of(model)(x[:, :64])


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
