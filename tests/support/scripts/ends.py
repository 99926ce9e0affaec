"""Loops that end in different ways; see tests/together/test_ends.py."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

HOW = sys.argv[1]
RANK = int(os.environ.get("RANK", "0"))


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seconds: float = 0.0) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        torch.ones(100, 100) @ torch.ones(100, 100)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def train() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(20):
        step(model, optimizer, 0.01)


def trained() -> torch.optim.Optimizer:
    """Returns its optimizer."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (batch,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(40, 4)), batch_size=2):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    return optimizer


def main() -> None:
    if HOW == "returns":  # and a signal ends it, like a worker of a pool
        train()
        os.kill(os.getpid(), signal.SIGTERM)
    if HOW == "thread":  # like a worker of Ray; the optimizer lives on
        kept: list[torch.optim.Optimizer] = []
        thread = threading.Thread(target=lambda: kept.append(trained()))
        thread.start()
        thread.join()
        time.sleep(60)
    model: torch.nn.Module = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if HOW == "sleeps":
        for _ in range(20):
            step(model, optimizer, 0.01)
        time.sleep(60)
    if HOW == "uneven":
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
        model = torch.nn.parallel.DistributedDataParallel(model)
        for _ in range(20 - RANK % 2):
            step(model, optimizer, 0.01)
        time.sleep(60 if RANK % 2 else 0)
    if HOW == "early":
        dist.init_process_group("gloo")
        for _ in range(20):
            step(model, optimizer, 0.02 if RANK < 2 else 0.2)
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
