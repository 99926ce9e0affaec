"""A loop that loads by hand, computes, or logs slowly; says on stdout for how many ns it was blocked, and for
how many on a core or waiting for one, in all and in rollouts.

Also says for how long a hypervisor took this machine's cores away. Linux tells that of cores and not of threads: to a
thread such time is neither spent nor queued for, as if it were blocked.

blocked.py NAME
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import zlib

import torch
from own_clock import OwnClock
from torch import nn

import whyidle

SECONDS = 2.0
_clock = OwnClock()
_over = threading.Event()


def _stolen() -> int:
    """Nanoseconds, summed over all cores (proc_stat(5))."""
    with open("/proc/stat") as file:
        return int(file.readline().split()[8]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Loop:
    def __init__(self) -> None:
        self.model = nn.Linear(64, 64)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.blocked = self.rollout = self.blocked_rollout = 0
        self.last: int | None = None

    def sleep(self, seconds: float) -> None:
        begun, busy = time.monotonic_ns(), _clock.busy_ns()
        time.sleep(seconds)
        self.blocked += time.monotonic_ns() - begun - (_clock.busy_ns() - busy)

    def step(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(batch).square().mean().backward()
        self.optimizer.step()


def sleeps(loop: Loop) -> None:
    loop.sleep(0.02)
    loop.step(torch.randn(8, 64))


def sleeps_shortly(loop: Loop) -> None:
    loop.sleep(0.0005)
    loop.step(torch.randn(8, 64))


def computes(loop: Loop) -> None:
    end = time.thread_time() + 0.01
    while time.thread_time() < end:
        loop.model(torch.randn(64, 64))
    loop.step(torch.randn(8, 64))


def rolls_out(loop: Loop) -> None:
    """Most of its blocked time is in rollouts, and most of its compute is not."""
    with whyidle.phase("rollout"):
        busy, blocked = _clock.busy_ns(), loop.blocked
        loop.sleep(0.02)
        turn(0.003)
        loop.rollout += _clock.busy_ns() - busy
        loop.blocked_rollout += loop.blocked - blocked
    loop.sleep(0.002)
    turn(0.008)
    loop.step(torch.randn(8, 64))


def turn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def logs(loop: Loop) -> None:
    """The loop has a loader: time between a step and the next batch is host time."""
    for (batch,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(80, 64)), 8):
        loop.step(batch)
        loop.sleep(0.01)


def threads_come_and_go(loop: Loop) -> None:
    """While the loop sleeps, threads start, compute and end. Nobody waits for them."""
    threads = [threading.Thread(target=compresses) for _ in range(2)]
    for thread in threads:
        thread.start()
    loop.sleep(0.03)
    loop.step(torch.randn(8, 64))


def compresses() -> None:
    data, end = os.urandom(1 << 14), time.thread_time() + 0.004
    while time.thread_time() < end:
        zlib.compress(data)  # without Python's lock


def locked(loop: Loop) -> None:
    """Another thread computes in Python all the time, and has the lock whenever the loop comes back from torch."""
    if loop.last is None:
        threading.Thread(target=counts, name="counts", daemon=True).start()
        loop.last = time.monotonic_ns() - _clock.busy_ns()
    loop.step(torch.randn(8, 64))
    for _ in range(100):
        os.stat("/")  # gives up the lock for a µs, as reads and many operations of torch do
    idle = time.monotonic_ns() - _clock.busy_ns()  # waits for the lock, too, after it has read the clock
    loop.blocked, loop.last = loop.blocked + idle - loop.last, idle


def counts() -> None:
    while not _over.is_set():
        sum(range(1000))


TURNS = (sleeps, sleeps_shortly, computes, rolls_out, logs, threads_come_and_go, locked)


def main() -> None:
    torch.set_num_threads(1)
    [does] = [each for each in TURNS if each.__name__ == sys.argv[1]]
    loop = Loop()
    loop.step(torch.randn(8, 64))
    begun, busy, stolen = time.monotonic(), _clock.busy_ns(), _stolen()
    while time.monotonic() < begun + SECONDS * (2 if does is locked else 1):
        does(loop)
    _over.set()
    wall = int((time.monotonic() - begun) * 1e9)
    told = {"blocked": loop.blocked, "wall": wall, "busy": _clock.busy_ns() - busy, "stolen": _stolen() - stolen}
    print(json.dumps(told | {"rollout": loop.rollout, "blocked_rollout": loop.blocked_rollout}))


if __name__ == "__main__":
    main()
