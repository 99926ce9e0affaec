"""One loader after the other through real DataLoaders. Prints, per loader, ns per cause of the wait for data, and how
many workers the loader has that the loop has waited for most by then."""

from __future__ import annotations

import gc
import json
import mmap
import os
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import account  # noqa: F401
import torch
from own_clock import OwnClock
from torch.utils.data import DataLoader, Dataset

import whyidle
from whyidle.ledger.causes import CAUSES
from whyidle.ledger.layout import WORD_AT
from whyidle.torch_hooks import attach as attached

HERE = Path(os.environ["ACCOUNT_DIR"])
NOISE = os.urandom(1 << 20)


def burn(seconds: float) -> None:
    """Uses CPU time of this thread, however long it takes to get it."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(500))


class Made(Dataset[torch.Tensor]):
    """A sample that takes 20 ms to make, in the way of ``how``."""

    def __init__(self, how: str):
        self.how = how

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        getattr(self, self.how)()
        return torch.ones(4)

    def sleeps(self) -> None:
        time.sleep(0.02)

    def burns(self) -> None:
        burn(0.02)

    def sleeps_and_burns(self) -> None:
        time.sleep(0.018)
        burn(0.002)

    def collects(self) -> None:
        for _ in range(4):
            time.sleep(0.005)
            gc.collect(1)

    def compresses_in_threads(self) -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: zlib.compress(NOISE, 6), range(2)))

    def reads_directly(self) -> None:
        """Appends to the file `blocked` for how many ns the thread neither ran nor waited for a CPU."""
        clock = OwnClock()
        begun, busy = time.monotonic_ns(), clock.busy_ns()
        fd = os.open(HERE / "file", os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, 1 << 20)
        for block in range(16):
            os.preadv(fd, [buffer], block << 20)
        os.close(fd)
        blocked = time.monotonic_ns() - begun - (clock.busy_ns() - busy)
        with open(HERE / "blocked", "a", encoding="ascii") as file:
            print(blocked, file=file)


def large(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.ones(64)


class SlowToLoad:
    """A batch that the worker makes at once, and that the parent needs 20 ms to unpickle."""

    def __reduce__(self) -> Any:
        return _slow, ()


def _slow() -> str:
    burn(0.02)
    return "a batch"


def slow_to_load(_: list[torch.Tensor]) -> SlowToLoad:
    return SlowToLoad()


class Ready(Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index


def linger(worker: int) -> None:
    Finalize(None, time.sleep, (0.3,), exitpriority=1)


def loader(name: str) -> DataLoader[Any]:
    if name == "unpickles":
        return DataLoader(Ready(), 2, num_workers=1, collate_fn=slow_to_load)
    if name == "crowded":
        return DataLoader(Made("burns"), 2, num_workers=4)
    if name == "lingers":
        return DataLoader(Ready(), 2, num_workers=1, worker_init_fn=linger)
    if name == "ready:0":
        return DataLoader(Ready(), 2)
    how, _, method = name.partition(":")
    if how == "once":
        return DataLoader(Ready(), 40, num_workers=1, multiprocessing_context=method)
    return DataLoader(Made(how), 2, num_workers=0 if method else 1)


if __name__ == "__main__":
    if os.environ.get("ONE_CORE"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    whyidle.attach()
    words = attached._session.writer.words  # type: ignore[union-attr]
    at = WORD_AT["cause_ns"][0]
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    told: dict[str, dict[str, int]] = {}
    workers = []
    for name in sys.argv[1:]:
        before = words[at : at + len(CAUSES)].tolist()
        for _ in loader(name):
            weight.sum().backward()
            optimizer.step()
        after = words[at : at + len(CAUSES)].tolist()
        told[name] = {c: b - a for c, a, b in zip(CAUSES, before, after, strict=True) if c.startswith("data_")}
        workers.append(words[WORD_AT["loader_workers"][0]])
    print(json.dumps(told))
    print(json.dumps(workers))
