"""Two ranks that read slowly in the loop, one of which is late. The script does not use whyidle."""

from __future__ import annotations

import os
import time

import account
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

STEPS = 80
READ_SECONDS, LATE_SECONDS = 0.02, 0.03
RANK = int(os.environ["RANK"])


def nap(seconds: float) -> float:
    """Sleeps, and returns how long it really was."""
    start = time.monotonic()
    time.sleep(seconds)
    return time.monotonic() - start


class Slow(Dataset[Tensor]):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Tensor:
        lost["reads"].append(nap(READ_SECONDS))
        return torch.ones(4)


lost: dict[str, list[float]] = {"reads": [], "late": []}
torch.set_num_threads(1)
dist.init_process_group("gloo")
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.01)
for x in DataLoader(Slow(), batch_size=None):
    lost["late"].append(nap(LATE_SECONDS) if RANK == 1 else 0.0)
    (weight * x).square().sum().backward()
    dist.all_reduce(weight.grad)
    optimizer.step()
    optimizer.zero_grad()
account.facts.update({name: sum(each[1:]) for name, each in lost.items()})  # a replay leaves the first step out
dist.barrier()
dist.destroy_process_group()
