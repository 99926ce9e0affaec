"""Calls in groups of many kinds, by four ranks on a mesh of 2 x 2: ``groups.py NAME…``. The script counts its waits."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import account
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

RANK = int(os.environ["RANK"])
NEXT, BEFORE = (RANK + 1) % 4, (RANK - 1) % 4
waits: dict[str, int] = {}
"""Name of a group -> how often this rank waited there. ``?``: in groups without a slot."""
groups: dict[str, Any] = {}


def waited(name: str, times: int = 1) -> None:
    waits[name] = waits.get(name, 0) + times


def ones(size: int = 8) -> torch.Tensor:
    return torch.ones(size) * (RANK + 1)


def reduce(group: Any, name: str) -> None:
    value = ones()
    dist.all_reduce(value, group=group)
    waited(name)
    account.loss("reduced", value.sum())


def families(make: Callable[[list[int]], Any], *members: list[int]) -> Any:
    """The one of several groups that contains this rank. All ranks must create all of them."""
    made = [(ranks, make(ranks)) for ranks in members]
    return next((group for ranks, group in made if RANK in ranks), None)


def slots() -> None:
    """World, mesh dimensions, groups of the same ranks, subgroups, groups of one rank."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    groups.update(mesh=mesh, dp=mesh.get_group("dp"), tp=mesh.get_group("tp"))
    for name in ("dp", "tp"):
        if not groups[name].group_desc.startswith("mesh_"):  # torch 2.4
            groups[name]._set_group_desc(f"mesh_{name}")
    for _ in range(3):
        reduce(None, "world")
        reduce(groups["dp"], "dp")
        reduce(groups["tp"], "tp")
    same = families(dist.new_group, [0, 1], [2, 3])
    reduce(same, "tp")
    reduce(dist.new_group([3, 2, 1, 0]), "world")
    three = families(dist.new_group, [0, 1, 2])
    if RANK < 3:
        reduce(three, "3 ranks")
    alone = families(dist.new_group, [0], [1], [2], [3])
    dist.all_reduce(ones(), group=alone)
    dist.barrier(alone)


def kinds() -> None:
    """Ways in which a collective can be called and waited for."""
    tp, world = groups["tp"], dist.group.WORLD
    work = dist.all_reduce(ones(), group=tp, async_op=True)
    work.wait()
    waited("tp")
    dist.all_reduce(ones(), group=tp, async_op=True).get_future().wait()
    waited("tp")
    works = [dist.all_reduce(ones(), group=group, async_op=True) for group in (tp, world, tp)]
    for one in reversed(works):
        one.wait()
    waited("tp", 2)
    waited("world")
    dist.all_reduce_coalesced([ones(), ones()], group=tp)
    waited("tp")
    dist.barrier(tp)
    waited("tp")
    told: list[Any] = [None] * 2
    dist.all_gather_object(told, {"rank": RANK}, group=tp)
    waited("tp", 2)
    said = [f"by rank {RANK}"]
    dist.broadcast_object_list(said, src=RANK - RANK % 2, group=tp)
    waited("tp", 2)
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    waited("world")


def messages() -> None:
    """Around the ring of all four, and between the two ranks of a mesh dimension."""
    for _ in range(2):
        sent, came = dist.isend(ones(), NEXT), dist.irecv(torch.empty(8), BEFORE)
        for work in (sent, came):
            work.wait()
        waited("world p2p", 2)
    buffer = torch.empty(8)
    operations = [dist.P2POp(dist.isend, ones(), NEXT), dist.P2POp(dist.irecv, buffer, BEFORE)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    waited("world p2p", 2)
    account.loss("came", buffer.sum())
    other = RANK ^ 1
    if other > RANK:
        dist.send(ones(), other, group=groups["tp"])
    else:
        dist.recv(torch.empty(8), other, group=groups["tp"])
    waited("tp p2p")
    if RANK == 0:
        dist.recv(torch.empty(8))  # from any sender
        waited("world p2p")
    elif RANK == 2:
        dist.send(ones(), 0)
        waited("world p2p")


def functional() -> None:
    """Functional collectives, called directly and in DTensor."""
    try:
        from torch.distributed.tensor import DTensor, Replicate, Shard
    except ImportError:  # torch 2.4
        from torch.distributed._tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = groups["mesh"]
    for group, name in ((groups["dp"], "dp"), ((mesh, 1), "tp"), (mesh["dp"], "dp")):
        value = funcol.all_reduce(ones(), "sum", group)
        account.loss("functional", (value + 1).sum())  # the wait is when the result is used
        waited(name)
    later = funcol.all_reduce(ones(), "sum", groups["tp"])
    gathered = funcol.all_gather_tensor(ones(), 0, groups["dp"])
    account.loss("functional", gathered.sum())
    account.loss("functional", later.sum())
    waited("dp")
    waited("tp")
    account.loss("functional", funcol.reduce_scatter_tensor(ones(), "sum", 0, groups["dp"]).sum())
    account.loss("functional", funcol.all_to_all_single(ones(), None, None, groups["dp"]).sum())
    waited("dp", 2)

    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    # Parameters are sent first, in one call or another.
    net = parallelize_module(layers, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        loss = net(torch.ones(2, 8)).square().mean()
        waited("tp")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        account.loss("tensor parallel", loss)
    left = DTensor.from_local(ones(), mesh["dp"], [Shard(0)])
    account.loss("redistributed", left.redistribute(placements=[Replicate()]).to_local().sum())
    waited("dp")


class Averaged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(funcol.all_reduce(self.layer(x), "sum", groups["tp"])) + 1


def compiled() -> None:
    """A functional collective inside a graph is compute."""
    net = torch.compile(Averaged(), backend="aot_eager")
    for _ in range(3):
        account.loss("compiled", net(torch.ones(2, 8)).sum())


def many() -> None:
    """More groups than slots: six of any ranks, and a seventh for messages."""
    sizes: dict[int, int] = {}
    for members in (
        ([0, 1], [2, 3]),
        ([0, 2], [1, 3]),
        ([0, 3], [1, 2]),
        ([0, 1, 2],),
        ([1, 2, 3],),
        ([0, 1, 3],),
        ([0, 2, 3],),
    ):
        group = families(dist.new_group, *members)
        if group is not None:
            groups[str(members)] = group
            number = sizes[group.size()] = sizes.get(group.size(), 0) + 1
            reduce(group, f"{group.size()} ranks" + (f" ({number})" if number > 1 else ""))
    for _ in range(2):
        sent = dist.isend(ones(), NEXT)
        dist.recv(torch.empty(8), BEFORE)
        sent.wait()
        waited("?", 2)


def left_alone() -> None:
    """Works that nobody waits for, both kept and dropped, and one that only some ranks wait for twice."""
    kept = [dist.all_reduce(ones(), async_op=True) for _ in range(300)]
    for _ in range(600):
        dist.all_reduce(ones(), async_op=True)
    work = dist.all_reduce(ones(), async_op=True)
    work.wait()
    waited("world")
    if RANK < 2:
        work.wait()
        waited("?")
    reduce(None, "world")
    kept[-1].wait()
    waited("world")


def threads() -> None:
    """A thread next to the loop communicates with other ranks in a separate group."""
    group = families(dist.new_group, [0, 1], [2, 3])
    beside = threading.Thread(target=dist.all_reduce, args=(ones(),), kwargs={"group": group})
    beside.start()
    beside.join()
    reduce(None, "world")


def leave() -> None:
    dist.barrier()
    waited("world")
    account.let_gloo_finish()
    dist.destroy_process_group()


def again() -> None:
    """Another world of the same ranks. Its groups are the same sets of ranks, created in another order."""
    meeting: list[Any] = [None]
    if RANK == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            meeting = [f"tcp://127.0.0.1:{probe.getsockname()[1]}"]
    dist.broadcast_object_list(meeting)
    waited("world", 2)
    leave()
    groups.clear()
    dist.init_process_group("gloo", init_method=meeting[0], rank=RANK, world_size=4)
    rows = families(dist.new_group, [0, 1], [2, 3])
    cross = families(dist.new_group, [0, 3], [1, 2])
    columns = families(dist.new_group, [0, 2], [1, 3])
    for _ in range(2):
        reduce(columns, "dp")
        reduce(cross, "2 ranks")  # the mesh had no such dimension
        reduce(rows, "tp")
        reduce(None, "world")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for named in sys.argv[1:]:
        with account.scenario(named):
            globals()[named]()
    leave()
    account.facts["waits"] = waits
