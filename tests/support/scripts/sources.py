"""Loops whose batches do not come from torch's loader. Prints, per source, ns per cause of the wait for data, how many
batches and samples the ledger has, how many of them are of evaluations, and the last loss.

sources.py SOURCE:HOW…
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import multiprocessing.pool
import queue
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import account  # noqa: F401
import numpy
import torch
from loaders import Made
from torch.utils.data import DataLoader

import whyidle
from whyidle.ledger.causes import CAUSES
from whyidle.ledger.layout import WORD_AT
from whyidle.torch_hooks import attach as attached

BATCHES, SIZE = 24, 2
Make = Callable[[int], torch.Tensor]


def make(dataset: Made, number: int) -> torch.Tensor:
    return torch.stack([dataset[index] for index in range(SIZE)])


def from_thread(batch: Make, how: str) -> Iterator[torch.Tensor]:
    """A queue that a thread fills, whose end is not a batch."""
    ready: queue.Queue[Any] = queue.Queue(2)

    def fill() -> None:
        for number in range(BATCHES):
            ready.put({"number": number, "x": batch(number)})
        ready.put(None)

    threading.Thread(target=fill, daemon=True).start()
    while (item := ready.get()) is not None:
        yield item["x"]


def from_thread_with_timeout(batch: Make, how: str) -> Iterator[torch.Tensor]:
    """The loop polls the queue with a timeout that is shorter than a batch takes."""
    ready: queue.Queue[torch.Tensor] = queue.Queue(2)
    threading.Thread(target=lambda: [ready.put(batch(number)) for number in range(BATCHES)], daemon=True).start()
    for _ in range(BATCHES):
        while True:
            try:
                item = ready.get(timeout=0.002)
            except queue.Empty:
                continue
            break
        yield item


def from_thread_by_looking(batch: Make, how: str) -> Iterator[torch.Tensor]:
    """As batchgenerators 0.25: the loop sleeps as long as the queue is empty."""
    ready: queue.Queue[torch.Tensor] = queue.Queue(2)
    threading.Thread(target=lambda: [ready.put(batch(number)) for number in range(BATCHES)], daemon=True).start()
    for _ in range(BATCHES):
        while ready.empty():
            time.sleep(0.002)
        yield ready.get()


def from_pool(batch: Make, how: str) -> Iterator[torch.Tensor]:
    with multiprocessing.pool.ThreadPool(1) as pool:
        yield from pool.imap(batch, range(BATCHES))


def from_loader_in_thread(batch: Make, how: str) -> Iterator[torch.Tensor]:
    """A thread asks a loader of torch, whose worker makes the batches."""
    ready: queue.Queue[Any] = queue.Queue(1)
    workers = iter(DataLoader(Made(how), SIZE, num_workers=1))

    def fill() -> None:
        for _ in range(BATCHES - 4):
            ready.put(next(workers))
        ready.put(None)

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    while (item := ready.get()) is not None:
        yield item
    thread.join()


def _fill(batch: Make, ready: Any) -> None:
    for number in range(BATCHES):
        ready.put(batch(number).numpy())


def from_process(batch: Make, how: str) -> Iterator[torch.Tensor]:
    """A queue that a process fills with arrays."""
    context = multiprocessing.get_context("fork")
    ready = context.Queue(2)
    process = context.Process(target=_fill, args=(batch, ready), daemon=True)
    process.start()
    for _ in range(BATCHES):
        array: numpy.ndarray[Any, Any] = ready.get()
        yield torch.from_numpy(array)
    process.join()


def from_future(batch: Make, how: str) -> Iterator[torch.Tensor]:
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(batch, 0)
        for number in range(BATCHES):
            ready, following = following, pool.submit(batch, number + 1)
            yield ready.result()


def from_phase(batch: Make, how: str) -> Iterator[torch.Tensor]:
    """The user marks what the hooks cannot see."""
    for number in range(BATCHES):
        with whyidle.phase("data"):
            item = batch(number)
        yield item


class BaseNode:
    def __next__(self) -> Any:
        return self.next()  # type: ignore[attr-defined]


class LoaderIterator(BaseNode):
    def __init__(self, batch: Make):
        self.batch = batch
        self.ready: queue.Queue[Any] = queue.Queue(2)
        self.left = BATCHES
        threading.Thread(target=self.fill, daemon=True).start()

    def __iter__(self) -> Any:
        return self

    def fill(self) -> None:
        for number in range(BATCHES):
            self.ready.put((self.batch(number), number))

    def next(self) -> Any:
        if not self.left:
            raise StopIteration
        self.left -= 1
        while True:
            try:
                return self.ready.get(block=True, timeout=0.005)[0]
            except queue.Empty:
                continue


class Dataset:
    def __init__(self, batch: Make):
        self.batch = batch

    def iter(self, batch_size: int) -> Iterator[dict[str, torch.Tensor]]:
        for number in range(BATCHES):
            yield {"x": self.batch(number)}


class DALIGenericIterator:
    def __init__(self, batch: Make):
        self.batch = batch
        self.first: Any = None
        self.numbers = iter(range(BATCHES))
        self.first = DALIGenericIterator.__next__(self)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.first is not None:
            item, self.first = self.first, None
            return item
        return [{"x": self.batch(next(self.numbers))}]


STAND_INS = {
    "torchdata.nodes.loader": LoaderIterator,
    "datasets.arrow_dataset": Dataset,
    "nvidia.dali.plugin.pytorch": DALIGenericIterator,
}
for _name, _class in STAND_INS.items():  # before the hooks are installed
    sys.modules[_name] = types.ModuleType(_name)
    setattr(sys.modules[_name], _class.__name__, _class)


def from_nodes(batch: Make, how: str) -> Iterator[torch.Tensor]:
    """As torchdata.nodes 0.11: the loop asks a node, which asks a queue until a thread has filled it."""
    return iter(LoaderIterator(batch))


def from_generator(batch: Make, how: str) -> Iterator[torch.Tensor]:
    """As `Dataset.iter` of datasets 5.2: a generator that makes its batches when it is asked."""
    return (item["x"] for item in Dataset(batch).iter(SIZE))


def from_call(batch: Make, how: str) -> Iterator[torch.Tensor]:
    """As DALI 2.4: the constructor of an iterator asks it for its first batch."""
    return (item[0]["x"] for item in DALIGenericIterator(batch))


SOURCES = {
    "thread": from_thread,
    "timeout": from_thread_with_timeout,
    "looks": from_thread_by_looking,
    "pool": from_pool,
    "loader_in_thread": from_loader_in_thread,
    "process": from_process,
    "future": from_future,
    "nodes": from_nodes,
    "generator": from_generator,
    "call": from_call,
    "phase": from_phase,
}


def not_batches(step: Callable[[torch.Tensor], None]) -> None:
    """A loop that waits for other things than batches: a message of a thread, a scalar, the end of a save."""
    messages: queue.Queue[Any] = queue.Queue()
    with ThreadPoolExecutor(1) as pool:
        for _ in range(10):
            threading.Timer(0.02, messages.put, ("saved",)).start()
            messages.get()
            threading.Timer(0.02, messages.put, (torch.tensor(1.0),)).start()
            messages.get()
            pool.submit(lambda: None).result()
            step(torch.ones(SIZE, 4))


def work_between(step: Callable[[torch.Tensor], None]) -> None:
    """A loop that computes for 20 ms when nothing has come yet, and asks again then."""
    messages: queue.Queue[Any] = queue.Queue()
    for _ in range(10):
        assert messages.empty()
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            torch.ones(64, 64).sum()
        messages.put(torch.ones(SIZE, 4))
        step(messages.get())


LOOPS = {"not_batches": not_batches, "work_between": work_between}


def main() -> None:
    torch.set_num_threads(1)
    if "--plain" not in sys.argv:
        whyidle.attach()
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.001)
    losses: list[str] = []

    def step(batch: torch.Tensor) -> None:
        loss = (weight * batch).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())

    for _ in range(2):
        step(torch.ones(SIZE, 4))
    told: dict[str, Any] = {}
    for name in sys.argv[1:]:
        if name.startswith("--"):
            continue
        before = snapshot()
        source, _, how = name.partition(":")
        if source in LOOPS:
            LOOPS[source](step)
        elif how:
            for batch in SOURCES[source](functools.partial(make, Made(how)), how):
                step(batch)
        told[name] = {key: value - before[key] for key, value in snapshot().items()} | {"loss": losses[-1]}
    print(json.dumps(told))


def snapshot() -> dict[str, int]:
    writer = attached._session.writer
    if writer is None:
        return {}
    words, at = writer.words, WORD_AT["cause_ns"][0]
    told = dict(zip(CAUSES, words[at : at + len(CAUSES)].tolist(), strict=True))
    return told | {word: words[WORD_AT[word][0]] for word in ("batches", "samples", "eval_batches", "steps", "faults")}


if __name__ == "__main__":
    main()
