"""One loader after the other through real DataLoaders. Prints, per loader, ns per cause of the wait for data, how many
workers the loader has that the loop has waited for most by then, and by how much other words of the ledger grew."""

from __future__ import annotations

import fcntl
import gc
import json
import mmap
import os
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import account  # noqa: F401
import torch
from own_clock import OwnClock
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import whyidle
from whyidle.ledger.causes import CAUSES
from whyidle.ledger.doing import DOING
from whyidle.ledger.layout import WORD_AT
from whyidle.torch_hooks import attach as attached

HERE = Path(os.environ["ACCOUNT_DIR"])
NOISE = os.urandom(1 << 20)


def burn(seconds: float) -> None:
    """Uses CPU time of this thread, however long it takes to get it."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(500))


def tell_cpu(name: str, ns: int) -> None:
    """Appends to the file `cpu` for how long a sample or batch has used the CPU, by the clock of its process."""
    with open(HERE / "cpu", "a", encoding="ascii") as file:
        print(name, ns, file=file)


class Made(Dataset[torch.Tensor]):
    """A sample that takes 20 ms to make, in the way of ``how``."""

    def __init__(self, how: str):
        self.how = how

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        begun, cpu = time.monotonic_ns(), time.process_time_ns()
        getattr(self, self.how)()
        name = self.how if get_worker_info() else f"{self.how}:0"
        tell_cpu(name, min(time.process_time_ns() - cpu, time.monotonic_ns() - begun))
        return torch.ones(4)

    def sleeps(self) -> None:
        time.sleep(0.02)

    def burns(self) -> None:
        burn(0.02)

    def sleeps_and_burns(self) -> None:
        time.sleep(0.018)
        burn(0.002)

    def reads_first(self) -> None:
        time.sleep(0.06)
        burn(0.015)

    def collects(self) -> None:
        for _ in range(4):
            time.sleep(0.005)
            gc.collect(1)

    def compresses_in_threads(self) -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: zlib.compress(NOISE, 6), range(2)))

    def takes_turns(self) -> None:
        with open(HERE / "lock", "w", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(0.02)

    def dies(self) -> None:
        self.made = getattr(self, "made", 0) + 1
        time.sleep(0.02)
        if self.made > 6:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)

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
    begun = time.thread_time_ns()
    burn(0.02)
    tell_cpu("unpickles", time.thread_time_ns() - begun)
    return "a batch"


def slow_to_load(_: list[torch.Tensor]) -> SlowToLoad:
    return SlowToLoad()


class Ready(Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index


class Buffered(IterableDataset[int]):
    """Fills a buffer for 0.3 s before the first sample. Each of two workers has a different number of samples."""

    def __iter__(self) -> Iterator[int]:
        time.sleep(0.3)
        yield from range(8 if get_worker_info().id else 40)  # type: ignore[union-attr]


class OneShard(IterableDataset[int]):
    """Only the first worker has samples. Each takes 10 ms."""

    def __iter__(self) -> Iterator[int]:
        for number in range(0 if get_worker_info().id else 24):  # type: ignore[union-attr]
            time.sleep(0.01)
            yield number


def prepare(worker: int) -> None:
    time.sleep(0.3)


def linger(worker: int) -> None:
    Finalize(None, time.sleep, (0.3,), exitpriority=1)


def loader(name: str) -> DataLoader[Any]:
    if name == "unpickles":
        return DataLoader(Ready(), 2, num_workers=1, collate_fn=slow_to_load)
    if name == "crowded":
        return DataLoader(Made("burns"), 2, num_workers=4)
    if name == "reads_first":
        return DataLoader(Made("reads_first"), 1, num_workers=4)
    if name == "lingers":
        return DataLoader(Ready(), 2, num_workers=1, worker_init_fn=linger)
    if name == "ready:0":
        return DataLoader(Ready(), 2)
    if name == "one_shard":
        return DataLoader(OneShard(), 2, num_workers=2)
    if name == "buffered":
        return DataLoader(Buffered(), 2, num_workers=2)
    how, _, method = name.partition(":")
    if how == "takes_turns":
        return DataLoader(Made(how), 2, num_workers=2)
    if how == "prepares":
        return DataLoader(Made("sleeps"), 40, num_workers=1, worker_init_fn=prepare, multiprocessing_context=method)
    if how == "once":
        return DataLoader(Ready(), 40, num_workers=1, multiprocessing_context=method)
    if how == "skips":
        return DataLoader(Made("sleeps"), 1, num_workers=0 if method else 1)
    return DataLoader(Made(how), 2, num_workers=0 if method else 1)


def other_words(words: memoryview[int]) -> dict[str, int]:
    """The time that nothing explains, and words about workers."""
    names = (
        "data_first_ns",
        "data_gone_ns",
        "data_exhausted_ns",
        "exhausted_worker_ns",
        "together_looks",
        "parallel_looks",
        "open_worker_pid",
        "faults",
        "skipped_batches",
        "skipped_ns",
        "skips",
    )
    looks = WORD_AT["worker_looks"][0]
    found = {name: words[WORD_AT[name][0]] for name in names}
    found |= {kind: words[looks + number] for number, kind in enumerate(DOING)}
    return found | {"unattributed": words[WORD_AT["cause_ns"][0] + CAUSES.index("unattributed")]}


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
    others: dict[str, dict[str, int]] = {}
    for name in sys.argv[1:]:
        how, _, _ = name.partition(":")
        before = words[at : at + len(CAUSES)].tolist()
        others_before = other_words(words)
        try:
            for number, _ in enumerate(loader(name)):
                if how == "skips" and number < 36:
                    continue
                weight.sum().backward()
                optimizer.step()
        except RuntimeError:
            if name != "dies":
                raise
        others[name] = {word: now - others_before[word] for word, now in other_words(words).items()}
        after = words[at : at + len(CAUSES)].tolist()
        told[name] = {c: b - a for c, a, b in zip(CAUSES, before, after, strict=True) if c.startswith("data_")}
        workers.append(words[WORD_AT["loader_workers"][0]])
    print(json.dumps(told))
    print(json.dumps(workers))
    print(json.dumps(others))
