"""Four ranks in two pairs. Rank 1 is late in its pair, which also has one more collective per step than the other pair.
Then all four meet. The script does not use whyidle."""

from __future__ import annotations

import os
import time

import account
import torch
import torch.distributed as dist

STEPS = 120
LATE_SECONDS = 0.02
RANK = int(os.environ["RANK"])

torch.set_num_threads(1)
dist.init_process_group("gloo")
first, second = dist.new_group([0, 1]), dist.new_group([2, 3])
mine = first if RANK < 2 else second
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.01)
with account.scenario("pairs"):
    for _ in range(STEPS):
        if RANK == 1:
            time.sleep(LATE_SECONDS)
        (weight * (RANK + 1)).square().sum().backward()
        dist.all_reduce(weight.grad, group=mine)
        if RANK < 2:
            dist.all_reduce(torch.ones(4), group=first)
        dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        account.counts["steps"] += 1
dist.barrier()
dist.destroy_process_group()
