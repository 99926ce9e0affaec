"""The last rank ends early: after 20 steps it leaves, and the others see it leave."""

from __future__ import annotations

import os
import sys
import time

import account
import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
pids: list[int] = [0] * WORLD
dist.all_gather_object(pids, os.getpid())
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.01)
for step in range(40):
    (weight * (RANK + 1)).square().sum().backward()
    if step < 20:
        dist.all_reduce(weight.grad)
        account.loss("early", weight.grad.sum())
    elif RANK == WORLD - 1:
        sys.exit(0)
    optimizer.step()
    optimizer.zero_grad()
    account.counts["steps"] += 1
deadline = time.monotonic() + 30
while os.path.exists(f"/proc/{pids[-1]}/exe") and time.monotonic() < deadline:  # a zombie has none
    try:
        os.readlink(f"/proc/{pids[-1]}/exe")
    except OSError:
        break
    time.sleep(0.05)
account.facts["left_in_time"] = time.monotonic() < deadline
