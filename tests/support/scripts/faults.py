"""A training loop with several disturbances, one after the other: ``faults.py NAME…``. It does not use whyidle."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import account
import torch
from torch.utils.data import DataLoader, Dataset

HERE = Path(os.environ["ACCOUNT_DIR"])
torch.manual_seed(1)
net = torch.nn.Linear(32, 32)
optimizer = torch.optim.SGD(net.parameters(), 0.1)


def steps(number: int, after_each: Callable[[], object] = lambda: None) -> None:
    for batch in DataLoader(torch.ones(number * 2, 32), 2):
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        account.counts["steps"] += 1
        account.loss("all", loss)
        after_each()


def plain() -> None:
    steps(10)


def until_told() -> None:
    """Continues until it is told to stop, or for a minute and a half."""
    deadline = time.monotonic() + 90
    while not (HERE / "stop").exists() and time.monotonic() < deadline:
        steps(5, lambda: time.sleep(0.002))
        (HERE / "runs").touch()


def saves_in_a_signal_handler() -> None:
    """Like a preempted job: every 3 ms, wherever the loop is."""
    saved = [0]

    def save(*_: object) -> None:
        torch.save(net.state_dict(), HERE / "preempted.pt")
        saved[0] += 1

    torch.save({}, HERE / "preempted.pt")  # imports what it needs now, because the signal must not interrupt an import
    signal.signal(signal.SIGALRM, save)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    while saved[0] < 50:
        steps(5)
    signal.setitimer(signal.ITIMER_REAL, 0)


def interrupted() -> None:
    """The loop is interrupted between two steps, in the wait for a batch and in a save, and continues each time."""

    class Interrupts(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> torch.Tensor:
            raise KeyboardInterrupt

    class Bad:
        def __reduce__(self) -> Any:
            raise KeyboardInterrupt

    tried: list[Callable[[], object]] = [
        lambda: steps(3, lambda: signal.raise_signal(signal.SIGINT)),
        lambda: next(iter(DataLoader(Interrupts(), 2))),
        lambda: torch.save(Bad(), HERE / "bad.pt"),
    ]
    for attempt in tried:
        try:
            attempt()
        except KeyboardInterrupt:
            account.counts["interrupted"] += 1
        steps(3)


def raises_in_backward() -> None:
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            raise ValueError("in backward")

    for _ in range(3):
        try:
            Raises.apply(net(torch.ones(2, 32))).sum().backward()
        except ValueError:
            account.counts["raised"] += 1
        optimizer.zero_grad()
        steps(2)


class Dies(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 4:
            time.sleep(0.3)  # until the batches before it have been fetched
            os._exit(11)
        return torch.ones(32)


def a_worker_dies() -> None:
    try:
        for _ in DataLoader(Dies(), 2, num_workers=1):
            pass
    except (RuntimeError, OSError, EOFError):  # by the loader's watch over its workers, or by the broken pipe
        account.counts["died"] += 1
    steps(3)


def forks() -> None:
    """A child by os.fork and one by multiprocessing, while the training continues. Each of them trains a little."""

    def child() -> None:
        while not (HERE / "end-children").exists():
            time.sleep(0.02)

    steps(2)
    pid = os.fork()
    if not pid:
        child()
        os._exit(0)
    other = multiprocessing.get_context("fork").Process(target=child)
    other.start()
    (HERE / "forked").touch()
    steps(20, lambda: time.sleep(0.01))
    os.waitpid(pid, 0)
    other.join()
    (HERE / "alone").touch()
    until_told()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
