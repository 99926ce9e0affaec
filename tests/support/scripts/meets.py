"""Ranks that meet by an address in the program: `meets.py PORT RANK RANKS STEPS`. No launcher tells their places."""

from __future__ import annotations

import sys

import account
import torch
import torch.distributed as dist

import whyidle


def train(steps: int) -> None:
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(steps):
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()


if __name__ == "__main__":
    port, rank, ranks, steps = map(int, sys.argv[1:])
    whyidle.attach()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    train(steps)
    dist.barrier()
    account.let_gloo_finish()
    dist.destroy_process_group()
