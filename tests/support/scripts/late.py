"""All ranks reduce something in each step. Before one of them the last rank sleeps, until it is told to continue or for
20 s."""

from __future__ import annotations

import os
import time
from pathlib import Path

import account
import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
HERE = Path(os.environ["ACCOUNT_DIR"])

dist.init_process_group("gloo")
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
for step in range(8):
    loss = (weight * (RANK + 1)).square().sum()
    loss.backward()
    if step == 4 and RANK == WORLD - 1:
        (HERE / "sleeps").touch()
        deadline = time.monotonic() + 20
        while not (HERE / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    dist.all_reduce(weight.grad)
    account.kept.append(weight.grad)
    optimizer.step()
    optimizer.zero_grad()
    account.counts["steps"] += 1
    account.loss("late", loss)
dist.destroy_process_group()
