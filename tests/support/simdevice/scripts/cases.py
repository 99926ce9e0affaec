"""Small training runs, the same on any device. Each returns its losses, and a checksum of its parameters."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import simdevice
import torch
import torch.distributed as dist
from torch import nn

WIDTH, BATCH, MICROBATCHES, STEPS = 16, 8, 4, 3
FORWARD_MS, BACKWARD_MS = 8.0, 16.0
Result = dict[str, Any]


def blocks(count: int = 3, forward_ms: float = FORWARD_MS, backward_ms: float = BACKWARD_MS) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(*(simdevice.Block(WIDTH, forward_ms, backward_ms) for _ in range(count)))


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def train(model: Callable[[torch.Tensor], torch.Tensor], parameters: Any, device: str, rank: int) -> list[float]:
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    losses = []
    for step in range(STEPS):
        loss = model(batch(step, rank).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())  # read at the end: item() waits for the device
    return [loss.item() for loss in losses]


def checksum(parameters: Any) -> list[float]:
    """The sums of the parameters. For sharded ones, those of this rank's part."""
    local = (getattr(each, "_local_tensor", each).detach() for each in parameters)
    return [each.double().sum().item() for each in local]


def ddp(device: str) -> Result:
    model = blocks().to(device)
    wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0005)
    return {
        "losses": train(wrapped, wrapped.parameters(), device, dist.get_rank()),
        "sums": checksum(model.parameters()),
    }


def fsdp1(device: str) -> Result:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    where = torch.device(device, 0) if device == "sim" else torch.device(device)
    model = FullyShardedDataParallel(
        blocks().to(device), auto_wrap_policy=ModuleWrapPolicy({simdevice.Block}), device_id=where, use_orig_params=True
    )
    return {"losses": train(model, model.parameters(), device, dist.get_rank())}


def fsdp2(device: str) -> Result:
    return _fully_shard(device, (dist.get_world_size(),), ("dp",))


def hsdp(device: str) -> Result:
    return _fully_shard(device, (2, 2), ("replicate", "shard"))


def _fully_shard(device: str, shape: tuple[int, ...], names: tuple[str, ...]) -> Result:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device, shape, mesh_dim_names=names)
    model = blocks().to(device)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return {"losses": train(model, model.parameters(), device, dist.get_rank()), "sums": checksum(model.parameters())}


def tensor_parallel(device: str) -> Result:
    """TP of 2 and, where there are 4 ranks, DP over the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(device, (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH)).to(device)
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    if mesh["dp"].size() > 1:
        fully_shard(model, mesh=mesh["dp"])
    rank = mesh["dp"].get_local_rank()
    return {"losses": train(model, model.parameters(), device, rank), "sums": checksum(model.parameters())}


def gpipe(device: str) -> Result:
    from torch.distributed.pipelining import ScheduleGPipe

    return _pipeline(device, ScheduleGPipe)


def one_f_one_b(device: str) -> Result:
    from torch.distributed.pipelining import Schedule1F1B

    return _pipeline(device, Schedule1F1B)


def _pipeline(device: str, schedule: Any) -> Result:
    from torch.distributed.pipelining import PipelineStage

    rank, size = dist.get_rank(), dist.get_world_size()
    model = blocks(size)[rank].to(device)
    # The shapes that stages exchange. Otherwise a first pass determines them.
    part = torch.empty(BATCH // MICROBATCHES, WIDTH, device=device, requires_grad=True)
    stage = PipelineStage(model, rank, size, torch.device(device), input_args=part, output_args=part)
    run = schedule(stage, n_microbatches=MICROBATCHES, loss_fn=lambda output, _: output.square().mean())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[torch.Tensor] = []
    for step in range(STEPS):
        inputs = batch(step, 0).to(device)
        if rank == 0:
            run.step(inputs)
        else:
            run.step(target=inputs, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": [loss.item() for loss in losses], "sums": checksum(model.parameters())}


def checkpointed(device: str) -> Result:
    from torch.utils.checkpoint import checkpoint

    model = blocks().to(device)

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            input = input.requires_grad_()
            for block in self.inner:
                input = checkpoint(block, input, use_reentrant=True)  # pyright: ignore
            return input

    wrapped = nn.parallel.DistributedDataParallel(Recomputed(), static_graph=True)
    return {
        "losses": train(wrapped, wrapped.parameters(), device, dist.get_rank()),
        "sums": checksum(model.parameters()),
    }


def saved(device: str) -> Result:
    """Trains, saves with DCP, and continues. A second model that loads the save trains in the same way."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device, (dist.get_world_size(),))
    first, second = blocks().to(device), blocks().to(device)
    for model in (first, second):
        fully_shard(model, mesh=mesh)
    train(first, first.parameters(), device, dist.get_rank())
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    dcp.save({"model": get_model_state_dict(first)}, checkpoint_id=folder[0])
    state = {"model": get_model_state_dict(second)}
    dcp.load(state, checkpoint_id=folder[0])
    second.load_state_dict(state["model"])
    same = all(
        torch.equal(mine.to_local().cpu(), theirs.to_local().cpu())  # pyright: ignore
        for mine, theirs in zip(first.parameters(), second.parameters(), strict=True)
    )
    losses = train(second, second.parameters(), device, dist.get_rank())
    return {"losses": losses, "loaded": same}


def collectives(device: str) -> Result:
    """Every collective, and messages."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(4 * size, dtype=torch.float32, device=device) + 10 * rank
    seen: dict[str, Any] = {}

    summed = mine.clone()
    dist.all_reduce(summed)
    seen["all_reduce"] = summed
    later = mine.clone()
    work = dist.all_reduce(later, op=dist.ReduceOp.MAX, async_op=True)
    assert work is not None
    work.wait()
    seen["all_reduce_async"] = later
    first = mine.clone()
    dist.broadcast(first, 1)
    seen["broadcast"] = first
    parts = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(parts, mine)
    seen["all_gather"] = torch.cat(parts)
    whole = torch.empty(size * mine.numel(), device=device)
    dist.all_gather_into_tensor(whole, mine)
    seen["all_gather_into_tensor"] = whole
    part = torch.empty(4, device=device)
    dist.reduce_scatter_tensor(part, mine)
    seen["reduce_scatter_tensor"] = part
    part = torch.empty(4, device=device)
    dist.reduce_scatter(part, list(mine.chunk(size)))
    seen["reduce_scatter"] = part
    turned = torch.empty_like(mine)
    dist.all_to_all_single(turned, mine)
    seen["all_to_all_single"] = turned
    turns = [torch.empty(4, device=device) for _ in range(size)]
    dist.all_to_all(turns, list(mine.chunk(size)))
    seen["all_to_all"] = torch.cat(turns)
    dist.reduce(summed, 0)
    seen["reduce"] = summed if rank == 0 else None
    dist.gather(mine, parts if rank == 0 else None)
    seen["gather"] = torch.cat(parts)
    dist.scatter(part, list(mine.chunk(size)) if rank == 0 else None)
    seen["scatter"] = part
    dist.barrier()

    peer, message = rank ^ 1, torch.empty_like(mine)
    if rank % 2 == 0:
        dist.send(mine, peer)
        dist.recv(message, peer)
    else:
        dist.recv(message, peer)
        dist.send(mine, peer)
    seen["send_recv"] = message
    both = torch.empty_like(mine)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, both, peer)]):
        work.wait()
    seen["batch"] = both
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    return {"seen": {k: None if v is None else v.tolist() for k, v in seen.items()}, "objects": objects}


def hang(device: str) -> Result:
    """One rank's collective never arrives: both hosts continue, no device does."""
    if device == "cpu":
        return {"alive": True, "value": 2.0}
    x, over = torch.ones(1, device=device), torch.Event("sim")
    if dist.get_rank() == 1:
        simdevice.hang_next_collective()
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    work.wait()
    y = x + 0
    over.record()
    for _ in range(3):
        dist.all_reduce(torch.ones(1))  # the hosts meet over gloo
    alive = not over.query() and not work.is_completed()
    dist.all_reduce(torch.ones(1))  # both have looked
    simdevice.release_hung_collectives()
    return {"alive": alive, "value": y.item()}


def slow_rank(device: str) -> Result:
    """Rank 1 is 200 ms of device time late in a collective that the home stream waits for; then one is hidden."""
    x = torch.ones(1, device=device)
    if device == "sim":
        torch.accelerator.synchronize()
        dist.barrier()
        simdevice.clear_schedule()
        simdevice.occupy(5.0 + 200.0 * dist.get_rank(), "compute")
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True)
    if device == "sim":
        simdevice.occupy(10.0, "beside")
    assert work is not None
    work.wait()
    return {"value": (x + 0).item()}


OF_TWO = (collectives, slow_rank, hang, ddp, fsdp1, fsdp2, tensor_parallel, gpipe, one_f_one_b, checkpointed, saved)
OF_FOUR = (hsdp, tensor_parallel)
