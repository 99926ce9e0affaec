"""A loop whose ranks exchange much, one rank a node: ``transfers.py STEPS MEGABYTES [second]``.

``second``: the first two ranks also exchange in a group of their own, over eth1.
"""

from __future__ import annotations

import os
import sys
import time

import account
import torch
import torch.distributed as dist
from torch import nn

RANK = int(os.environ["RANK"])
steps, size = int(sys.argv[1]), int(float(sys.argv[2]) * 1e6 / 4)

dist.init_process_group("gloo")
pair = None
if "second" in sys.argv:
    os.environ["GLOO_SOCKET_IFNAME"] = "eth1"
    pair = dist.new_group([0, 1])
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
much = torch.ones(size)
for _ in range(steps):
    loss = model(torch.ones(4, 8)).square().sum()
    loss.backward()
    time.sleep(0.03)
    dist.all_reduce(much)
    much /= dist.get_world_size()
    if pair is not None and RANK < 2:
        dist.all_reduce(much, group=pair)
        much /= 2
    optimizer.step()
    optimizer.zero_grad()
    account.loss("transfers", loss)
account.loss("transfers", much.sum())
dist.barrier()
account.let_gloo_finish()
dist.destroy_process_group()
