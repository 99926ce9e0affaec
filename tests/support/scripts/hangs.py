"""All ranks reduce something in each step, until the last rank hangs: ``hangs.py KIND``. See KINDS."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

KIND = sys.argv[1]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LAST = WORLD - 1
HERE = Path(os.environ["ACCOUNT_DIR"])
STEPS, AT = 8, 4


class Samples(Dataset[torch.Tensor]):
    """Its worker hangs when it reads the item of the step at which the rank must hang."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == AT:
            time.sleep(0.5)  # a thread sends the items before
            (HERE / "hangs").touch()
            WORKER_DOES[KIND]()
        return torch.ones(4)


def sleeps() -> None:
    time.sleep(60)


def dies() -> None:
    """Another process, such as a data worker, keeps its connections open, so that other ranks notice nothing."""
    if not os.fork():
        time.sleep(60)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def stops() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def locks() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def receives() -> None:
    dist.recv(torch.ones(4), src=0)


def meets_elsewhere() -> None:
    dist.all_reduce(torch.ones(4), group=pair)


def saves() -> None:
    """Nobody reads the pipe that it writes to."""
    path = HERE / "pipe"
    os.mkfifo(path)
    with open(os.open(path, os.O_RDWR), "wb") as file:
        torch.save(torch.ones(1 << 20), file)


def nothing() -> None:
    pass


KINDS: dict[str, Callable[[], None]] = {
    "sleep": sleeps,
    "die": dies,
    "stop": stops,
    "lock": locks,
    "recv": receives,
    "elsewhere": meets_elsewhere,
    "save": saves,
    "startup": nothing,
    "meeting": nothing,
    "worker": nothing,
    "worker-sleeps": nothing,
    "link": nothing,
}
WORKER_DOES: dict[str, Callable[[], None]] = {"worker": stops, "worker-sleeps": sleeps}
hang = KINDS[KIND]

if KIND == "meeting" and RANK == LAST:
    (HERE / "hangs").touch()
    sleeps()
dist.init_process_group("gloo")
pair = dist.new_group([0, LAST])
if KIND == "startup":
    if RANK == LAST:
        (HERE / "hangs").touch()
        sleeps()
    dist.all_reduce(torch.ones(4))
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
in_worker = KIND in WORKER_DOES and RANK == LAST
batches = iter(DataLoader(Samples(), batch_size=None, num_workers=1)) if in_worker else None
for step in range(STEPS if KIND != "link" else 100_000):
    if step == AT and RANK == LAST and not in_worker:
        (HERE / "hangs").touch()
        hang()
    batch = next(batches) if batches is not None else torch.ones(4)
    (weight * batch).square().sum().backward()
    dist.all_reduce(weight.grad)
    if KIND == "link":
        time.sleep(0.01)
    if step == 0:
        dist.all_reduce(torch.ones(4), group=pair)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
