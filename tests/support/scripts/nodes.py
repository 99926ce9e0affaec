"""Four ranks that all reduce together, as if there were two nodes of two ranks. Rank 3 reads slowly, as in `mesh.py`.

``nodes.py STEPS``. Groups of more than three ranks count as large, so only the leaders of the nodes, ranks 0 and 2,
exchange with each other.
"""

from __future__ import annotations

import account
import torch
import torch.distributed as dist
from mesh import RANK, Slow
from torch import nn
from torch.utils.data import DataLoader

import whyidle
from whyidle.torch_hooks.exchange import exchange, formation
from whyidle.torch_hooks.exchange.node_groups import NodeGroups


class Counting(NodeGroups):
    """Counts the blocks, and tells which gloo groups it has."""

    def allreduce(self, tensors: list, options: object) -> object:
        account.counts["blocks"] += 1
        account.facts["groups"] = [name for name in ("_up", "_leaders", "_down") if getattr(self, name) is not None]
        return super().allreduce(tensors, options)


formation.NODES_FROM = 3
exchange.clock_word = lambda: RANK // 2  # type: ignore[assignment]
exchange.NodeGroups = Counting  # type: ignore[misc]


def main() -> None:
    whyidle.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), 0.001)
    with account.scenario("nodes"):
        for batch in DataLoader(Slow(), 1):
            net(batch).square().mean().backward()
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)
            account.kept += [parameter.grad for parameter in net.parameters()]
            optimizer.step()
            optimizer.zero_grad()
            account.counts["steps"] += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
