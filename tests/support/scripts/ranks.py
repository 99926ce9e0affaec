"""Training loops of several ranks, one after the other: ``torchrun … ranks.py NAME…``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import account
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import all_reduce  # before anything else has used torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH = 4
RANK = int(os.environ["RANK"])


def data(batches: int = 6) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    size = batches * BATCH * int(os.environ["WORLD_SIZE"])
    return TensorDataset(torch.randn(size, 16, generator=generator), torch.randn(size, 4, generator=generator))


def loader(batches: int = 6, workers: int = 0) -> DataLoader[tuple[torch.Tensor, ...]]:
    dataset = data(batches)
    return DataLoader(dataset, BATCH, sampler=DistributedSampler(dataset, shuffle=False), num_workers=workers)


def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def size_of(net: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in net.parameters() if p.requires_grad)


def took(batch: torch.Tensor) -> None:
    account.counts["batches"] += 1
    account.counts["samples"] += len(batch)


def backward(loss: torch.Tensor, *reduced: nn.Module) -> None:
    loss.backward()
    account.counts["backwards"] += 1
    account.counts["all_reduce_bytes"] += sum(map(size_of, reduced))


def step(name: str, optimizer: torch.optim.Optimizer, *losses: torch.Tensor) -> None:
    optimizer.step()
    optimizer.zero_grad()
    account.counts["steps"] += 1
    for loss in losses:
        account.loss(name, loss)


def ddp(name: str) -> None:
    """The loop of most tutorials: two workers, DistributedSampler, SGD, two epochs."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        for x, y in loader(10, workers=2):
            took(x)
            loss = nn.functional.mse_loss(net(x), y)
            backward(loss, net)
            step(name, optimizer, loss)


def by_hand(name: str) -> None:
    """Averages gradients by an all_reduce that was imported before anything else."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for x, y in loader():
        took(x)
        loss = nn.functional.mse_loss(net(x), y)
        backward(loss)
        for p in net.parameters():
            all_reduce(p.grad)
            account.counts["all_reduce_bytes"] += p.numel() * p.element_size()
        step(name, optimizer, loss)


def no_sync(name: str) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number, (x, y) in enumerate(loader(12), 1):
        took(x)
        if number % 4:
            with net.no_sync():
                backward(nn.functional.mse_loss(net(x), y))
        else:
            loss = nn.functional.mse_loss(net(x), y)
            backward(loss, net)
            step(name, optimizer, loss)


def gan(name: str) -> None:
    torch.manual_seed(3)
    maker, judge = nn.Linear(8, 16), DistributedDataParallel(nn.Linear(16, 1), broadcast_buffers=False)
    maker = DistributedDataParallel(maker)
    maker_opt, judge_opt = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    torch.manual_seed(RANK)
    for x, _ in loader():
        took(x)
        judge_opt.zero_grad()
        with torch.no_grad():
            fake = maker(torch.randn(BATCH, 8))
        judged = nn.functional.softplus(judge(torch.cat([fake, -x]))).mean()
        backward(judged, judge)
        judge_opt.step()
        judge.requires_grad_(False)
        fooled = nn.functional.softplus(-judge.module(maker(torch.randn(BATCH, 8)))).mean()
        backward(fooled, maker)
        judge.requires_grad_(True)
        step(name, maker_opt, judged, fooled)


def evaluation(name: str) -> None:
    """In every third step: an evaluation whose result all ranks share."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number, (x, y) in enumerate(loader(), 1):
        took(x)
        loss = nn.functional.mse_loss(net(x), y)
        backward(loss, net)
        step(name, optimizer, loss)
        if number % 3 == 0:
            total = torch.zeros(1)
            with torch.no_grad():
                for x, y in loader(2):
                    took(x)
                    account.counts["eval_batches"] += 1
                    total += nn.functional.mse_loss(net(x), y)
            all_reduce(total)
            account.counts["all_reduce_bytes"] += total.element_size()
            account.loss(name, total)


def checkpoints(name: str) -> None:
    """DCP: a save, an asynchronous save during which the loop continues, and a load."""
    import torch.distributed.checkpoint as dcp

    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    folder = Path(os.environ["ACCOUNT_DIR"], "dcp")
    # The save continues in a thread. Its collectives must not be mixed with those of the loop.
    group = dist.new_group()
    waiting = None
    for number, (x, y) in enumerate(loader(), 1):
        took(x)
        loss = nn.functional.mse_loss(net(x), y)
        backward(loss, net)
        step(name, optimizer, loss)
        if number == 2:
            dcp.save({"model": net.module.state_dict()}, checkpoint_id=folder / "now")
            account.counts["saves"] += 1
        elif number == 4:
            waiting = dcp.async_save(
                {"model": net.module.state_dict()}, checkpoint_id=folder / "later", process_group=group
            )
            account.counts["saves"] += 1
    waiting.result()  # type: ignore[union-attr]
    state = {"model": net.module.state_dict()}
    dcp.load(state, checkpoint_id=folder / "later")
    account.counts["loads"] += 1


def objects(name: str) -> None:
    """Collectives other than all_reduce, in all ways in which they can be called."""
    world, tensor = dist.get_world_size(), torch.full((64,), float(RANK))
    dist.broadcast(tensor, 0)
    dist.all_gather([torch.empty(64) for _ in range(world)], tensor)
    dist.all_gather_into_tensor(torch.empty(64 * world), tensor)
    dist.reduce_scatter_tensor(torch.empty(32), tensor)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    account.counts["all_reduce_bytes"] += 256
    told = [None] * world
    dist.all_gather_object(told, {"rank": RANK})
    if RANK:
        dist.send(tensor, 0)
    else:
        dist.recv(tensor, 1)
    dist.barrier()
    account.loss(name, tensor.sum())


def fsdp2(name: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (net[0], net[2], net):  # type: ignore[index]
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters())
    for x, y in loader():
        took(x)
        loss = nn.functional.mse_loss(net(x), y)
        backward(loss)
        step(name, optimizer, loss)


def fsdp1(name: str) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in loader():
        took(x)
        loss = nn.functional.mse_loss(net(x), y)
        backward(loss)
        step(name, optimizer, loss)


def tensor_parallel(name: str) -> None:
    """DTensor, whose functional collectives wait in a separate operator."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader(data(3), BATCH):
        took(x)
        loss = nn.functional.mse_loss(net(x), y)
        account.counts["all_reduce_bytes"] += y.numel() * y.element_size()  # what the last layer sums up
        backward(loss)
        step(name, optimizer, loss)


def compiled_ddp(name: str) -> None:
    """torch.compile around DDP: the graph is split where DDP's buckets are."""
    net = torch.compile(DistributedDataParallel(model()), backend="aot_eager")
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in loader():
        took(x)
        loss = nn.functional.mse_loss(net(x), y)
        backward(loss, net)
        step(name, optimizer, loss)


def ddp_compiled(name: str) -> None:
    net = DistributedDataParallel(torch.compile(model(), backend="aot_eager"))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in loader():
        took(x)
        loss = nn.functional.mse_loss(net(x), y)
        backward(loss, net)
        step(name, optimizer, loss)


def compiled_collective(name: str) -> None:
    """An all_reduce inside a compiled function, which Dynamo replaces by a functional one."""

    @torch.compile(backend="aot_eager", fullgraph=True)
    def mean(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x / 2

    for value in range(3):
        account.loss(name, mean(torch.full((4,), float(value + RANK))).sum())


def leave() -> None:
    dist.barrier()
    account.let_gloo_finish()
    dist.destroy_process_group()


def again(name: str) -> None:
    """Ends the process group and creates another one."""
    leave()
    # In another way than before, because the launcher's store still has the keys of the first group.
    meeting = os.path.join(os.environ["ACCOUNT_DIR"], "again")
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=RANK, world_size=int(os.environ["WORLD_SIZE"])
    )
    by_hand(name)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for named in sys.argv[1:]:
        torch.manual_seed(0)
        with account.scenario(named):
            globals()[named](named)
    leave()
