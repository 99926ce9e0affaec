"""How the ranks are parallel: each builder returns the model, and a function that makes a step on a batch and returns
its loss."""

from __future__ import annotations

from collections.abc import Callable

import simdevice
import torch
import torch.distributed as dist
from torch import nn

WIDTH, BLOCKS, MICROBATCHES = 16, 4, 4
FORWARD_MS, BACKWARD_MS = 6.0, 12.0
"""For two ranks. Four ranks have three times as much, so that their hosts are ahead of their devices on two cores too.
"""
Step = Callable[[torch.Tensor], "torch.Tensor | None"]
Built = tuple[nn.Module, Step]


def blocks(slower: float) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(*(simdevice.Block(WIDTH, FORWARD_MS * slower, BACKWARD_MS * slower) for _ in range(BLOCKS)))


def _loss_of(model: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step


def ddp(slower: float) -> Built:
    model = nn.parallel.DistributedDataParallel(blocks(slower).to("sim"), bucket_cap_mb=0.001)
    return model, _loss_of(model)


def fsdp1(slower: float) -> Built:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(
        blocks(slower).to("sim"),
        auto_wrap_policy=ModuleWrapPolicy({simdevice.Block}),
        device_id=torch.device("sim", 0),
        use_orig_params=True,
    )
    return model, _loss_of(model)


def _sharded(slower: float, shape: tuple[int, ...], names: tuple[str, ...]) -> Built:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("sim", shape, mesh_dim_names=names)
    model = blocks(slower).to("sim")
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, _loss_of(model)


def fsdp2(slower: float) -> Built:
    return _sharded(slower, (dist.get_world_size(),), ("shard",))


def hsdp(slower: float) -> Built:
    return _sharded(slower, (2, 2), ("replicate", "shard"))


def tp_dp(slower: float) -> Built:
    """Pairs of layers that are split over two ranks, and FSDP2 over the other two."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(simdevice.busy(self.up(x), FORWARD_MS * slower, BACKWARD_MS * slower, "pair").tanh())

    mesh = init_device_mesh("sim", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(7)
    model = nn.Sequential(*(Pair() for _ in range(BLOCKS))).to("sim")
    for pair in model:
        parallelize_module(pair, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(pair, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model, _loss_of(model)


def recomputed(slower: float) -> Built:
    """DDP over blocks whose forward pass runs again inside the backward pass: a backward inside a backward."""
    from torch.utils.checkpoint import checkpoint

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = blocks(slower)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.requires_grad_()
            for block in self.inner:
                x = checkpoint(block, x, use_reentrant=True)  # pyright: ignore[reportAssignmentType]
            return x

    model = nn.parallel.DistributedDataParallel(Recomputed().to("sim"), static_graph=True, bucket_cap_mb=0.001)
    return model, _loss_of(model)


def pipeline(slower: float) -> Built:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, size = dist.get_rank(), dist.get_world_size()
    model = blocks(slower)[rank : rank + 1].to("sim")
    stage = PipelineStage(model, rank, size, torch.device("sim"))
    run = Schedule1F1B(stage, n_microbatches=MICROBATCHES, loss_fn=lambda output, _: output.square().mean())

    def step(x: torch.Tensor) -> torch.Tensor | None:
        losses: list[torch.Tensor] = []
        if rank == 0:
            run.step(x)
        else:
            run.step(target=x, losses=losses)
        return losses[-1] if losses else None

    return model, step


BUILDERS: dict[str, Callable[[float], Built]] = {
    "ddp": ddp,
    "fsdp1": fsdp1,
    "fsdp2": fsdp2,
    "recomputed": recomputed,
    "pipeline": pipeline,
    "hsdp": hsdp,
    "tp-dp": tp_dp,
}
