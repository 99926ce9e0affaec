"""Trains on a mesh of 2 x 2, whose rank 3 reads slowly: gradients are averaged in rows, then in columns.

Halfway the world goes, and another one of the same ranks comes.

``mesh.py STEPS [ATTACH]``: with ATTACH, ranks 0 and 1 attach whyidle before there is a process group, and ranks 2 and 3
once all groups are made and used. ``$ACCOUNT_DIR/trains`` is there once rank 0 has made 30 steps.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import account
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

RANK = int(os.environ["RANK"])
LATE, READ_SECONDS = 3, 0.03


class Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return int(sys.argv[1])

    def __getitem__(self, index: int) -> torch.Tensor:
        if RANK == LATE:
            time.sleep(READ_SECONDS)
        return torch.full((8,), float(index + RANK))


def attach(early: bool) -> None:
    if "ATTACH" in sys.argv and early == (RANK < 2):
        import whyidle

        whyidle.attach()


def main() -> None:
    attach(early=True)
    dist.init_process_group("gloo")
    groups = new_groups()
    attach(early=False)
    train("first", *groups)
    dist.destroy_process_group()
    # The first world's store cannot be used: it still has the keys of its groups.
    port = int(os.environ["SECOND_PORT"])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=RANK, world_size=4)
    train("second", *new_groups())
    dist.destroy_process_group()


def new_groups() -> tuple[Any, Any]:
    """The row and the column of this rank."""
    made = {ranks: dist.new_group(ranks) for ranks in ((0, 1), (2, 3), (0, 2), (1, 3))}
    row, column = (next(made[ranks] for ranks in half if RANK in ranks) for half in (list(made)[:2], list(made)[2:]))
    for group in (None, row, column):
        dist.all_reduce(torch.ones(1), group=group)
    return row, column


def train(name: str, row: Any, column: Any) -> None:
    torch.manual_seed(1)
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), 0.001)
    with account.scenario(name):
        for number, batch in enumerate(DataLoader(Slow(), 1)):
            loss = net(batch).square().mean()
            loss.backward()
            for group in (row, column):
                for parameter in net.parameters():
                    dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM, group=group)
            account.kept += [parameter.grad for parameter in net.parameters()]
            optimizer.step()
            optimizer.zero_grad()
            account.counts["steps"] += 1
            account.loss(name, loss)
            if number == 30 and RANK == 0:
                Path(os.environ["ACCOUNT_DIR"], "trains").touch()


if __name__ == "__main__":
    main()
