"""Two ranks that a program starts itself, without a launcher and its environment variables."""

from __future__ import annotations

import os
import sys

import account
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

account.facts["rank"] = -1  # the program itself: it does not train


def worker(rank: int, meeting: str) -> None:
    account.facts["rank"] = rank
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.manual_seed(1)
    net = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with account.scenario("spawn"):
        for _ in range(6):
            loss = net(torch.randn(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            account.counts["steps"] += 1
            account.counts["backwards"] += 1
            account.counts["all_reduce_bytes"] += 72
            account.loss("spawn", loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(worker, (os.path.join(os.environ["ACCOUNT_DIR"], "meeting"),), nprocs=2)
    sys.exit(3)
