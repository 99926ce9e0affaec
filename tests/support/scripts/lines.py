"""A loop that spends most of its time in one function: `lines.py NAME`.

hangs, awaits: the function does not return in one step until the file ``stop`` exists in ACCOUNT_DIR.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time

import torch
from torch import nn

import whyidle

STEPS = 60
SECRET = "a value of the user"


def log_metrics(secret: str) -> None:
    time.sleep(0.05)


def encode(secret: str) -> None:
    """Calls a library, which runs Python code."""
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        json.dumps({"secret": [secret] * 2000}, indent=1)


def average(secret: str) -> None:
    """As an average of the weights in Python. It is not an evaluation."""
    with torch.no_grad():
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass


def score(secret: str) -> None:
    """As a metric in Python, in the middle of a step."""
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass


class Routed(nn.Linear):
    """A model that computes in Python, too."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        return super().forward(input)


def get_batch(secret: str) -> None:
    """As nanoGPT: no loader, and no iterator."""
    time.sleep(0.05)


class Messages:
    """Awaits what another process writes into a pipe."""

    def __init__(self) -> None:
        self.end, write = os.pipe()
        if not os.fork():
            while True:
                time.sleep(0.05)
                try:
                    os.write(write, b"x")
                except OSError:
                    os._exit(0)
        os.close(write)

    def __next__(self) -> bytes:
        return os.read(self.end, 1)


def on_log(secret: str) -> None:
    time.sleep(0.05)


def hangs(secret: str) -> None:
    while not os.path.exists(os.path.join(os.environ["ACCOUNT_DIR"], "stop")):
        time.sleep(0.01)


def produce(batches: queue.Queue[int]) -> None:
    raise ValueError(SECRET)


def release(batches: queue.Queue[int]) -> None:
    hangs(SECRET)
    batches.put(1)


def awaits(secret: str) -> None:
    """Waits for a thread that an exception has ended, and for one that lives."""
    batches: queue.Queue[int] = queue.Queue()
    for target in (produce, release):
        threading.Thread(target=target, args=(batches,), name=target.__name__).start()
    batches.get()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    executed: dict[str, object] = {"time": time}
    exec("def typed(secret):\n    time.sleep(0.05)\n", executed)
    turn = {
        "log_metrics": log_metrics,
        "encode": encode,
        "average": average,
        "hangs": hangs,
        "awaits": awaits,
        "score": lambda secret: None,
        "forward": lambda secret: None,
        "typed": executed["typed"],
        "get_batch": get_batch,
        "next": lambda secret: next(messages),  # type: ignore[call-overload]
        "on_log": on_log,
    }[sys.argv[1]]
    messages = Messages() if sys.argv[1] == "next" else None
    model = (Routed if sys.argv[1] == "forward" else nn.Linear)(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(STEPS * 8, 64)), 8)
    loss = torch.zeros(())
    for number, (batch,) in enumerate(loader):
        loss = model(batch).square().mean()
        if sys.argv[1] == "score":
            score(SECRET)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if sys.argv[1] not in ("hangs", "awaits") or number == STEPS // 2:
            turn(SECRET)  # type: ignore[operator]
        else:
            log_metrics(SECRET)
        if number == STEPS // 2 and "forks" in sys.argv:
            fork()
    print(loss.item().hex())


def fork() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


if __name__ == "__main__":
    if "plain" not in sys.argv:
        whyidle.attach()
    main()
