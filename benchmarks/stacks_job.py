"""The trainings of benchmarks/stacks.py: `stacks_job.py NAME FOLDER`.

Each has one fault, and times it with its own clock. A library is imported by the training that needs it. Each rank
prints one line of JSON.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false
from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, STEPS, WIDTH = 8, 60, 64
SLEEP_SECONDS, BURN_SECONDS = 0.02, 0.01
"""How long a sample takes to read, or to decode."""
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
LATE = 1
"""The rank with the fault, if there are several."""

Model = Callable[[torch.Tensor], torch.Tensor]


def sleep() -> None:
    time.sleep(SLEEP_SECONDS)


def burn() -> None:
    end = time.thread_time() + BURN_SECONDS
    while time.thread_time() < end:
        sum(range(2000))


class Samples(Dataset[torch.Tensor]):
    """``slow`` is called for each sample."""

    def __init__(self, slow: Callable[[], None] | None = sleep, count: int = 12 * STEPS):
        self._slow, self._count = slow, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._slow is not None:
            self._slow()
        return torch.full((WIDTH,), float(index % 7))

    def batch(self, number: int) -> torch.Tensor:
        return torch.stack([self[number * BATCH + i] for i in range(BATCH)])


class Garbage(Samples):
    """Makes many objects, so that garbage collections interrupt the reads."""

    def __getitem__(self, index: int) -> torch.Tensor:
        _ = [{"a": [number]} for number in range(3000)]
        return super().__getitem__(index)


class Clock:
    """What the training measures itself, in seconds."""

    def __init__(self) -> None:
        self.begun: float | None = None
        self.lost = 0.0

    def waits(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches; the time in which the loop waits for them is lost."""
        batches = iter(batches)
        while True:
            before = time.monotonic()
            self.begun = self.begun or before
            batch = next(batches, None)
            self.lost += time.monotonic() - before
            if batch is None:
                return
            yield batch

    def tell(self, steps: int, loss: float) -> None:
        wall = time.monotonic() - (self.begun or 0.0)
        print(
            json.dumps({"rank": RANK, "wall": wall, "lost": self.lost, "steps": steps, "loss": loss.hex()}), flush=True
        )


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(WIDTH, 896), nn.ReLU(), nn.Linear(896, 896), nn.ReLU(), nn.Linear(896, 1))
    return nn.Sequential(*layers)


def train(batches: Iterable[Any], of: Callable[[Any], torch.Tensor] = lambda batch: batch) -> None:
    """``of``: the tensor of what the library calls a batch."""
    model, clock, steps, loss = net(), Clock(), 0, torch.zeros(())
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for batch in clock.waits(batches):
        loss = model(of(batch).float().reshape(-1, WIDTH).repeat(32, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if steps == STEPS:
            break
    clock.tell(steps, loss.item())


# -- libraries that make batches


def stateful_loader(folder: Path) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    train(StatefulDataLoader(Samples(), BATCH, num_workers=1))


def _nodes(method: Literal["thread", "process"]) -> None:
    import torchdata.nodes as nodes
    from torch.utils.data import SequentialSampler

    samples = Samples()
    node = nodes.SamplerWrapper(SequentialSampler(samples))
    node = nodes.ParallelMapper(node, map_fn=samples.__getitem__, num_workers=1, method=method)
    node = nodes.Mapper(nodes.Batcher(node, BATCH), torch.stack)
    train(nodes.Loader(nodes.Prefetcher(node, 2)))


def nodes_with_threads(folder: Path) -> None:
    _nodes("thread")


def nodes_with_processes(folder: Path) -> None:
    _nodes("process")


def webdataset(folder: Path) -> None:
    import numpy
    import webdataset

    with webdataset.TarWriter(str(folder / "0.tar")) as tar:
        for index in range(12 * STEPS):
            tar.write({"__key__": str(index), "x.npy": numpy.full(WIDTH, index % 7, dtype=numpy.float32)})

    def decode(array: Any) -> torch.Tensor:
        sleep()
        return torch.from_numpy(array)

    samples = webdataset.WebDataset(str(folder / "0.tar"), shardshuffle=False).decode().to_tuple("x.npy")
    batches = samples.map_tuple(decode).batched(BATCH)
    train(webdataset.WebLoader(batches, batch_size=None, num_workers=1), lambda batch: batch[0])


def _datasets(slow: Callable[[], None]) -> Any:
    import datasets

    def transform(rows: dict[str, Any]) -> dict[str, Any]:
        for _ in rows["x"]:
            slow()
        return {"x": torch.tensor(rows["x"])}

    values = [[float(index % 7)] * WIDTH for index in range(12 * STEPS)]
    return datasets.Dataset.from_dict({"x": values}).with_transform(transform)


def datasets_loop(folder: Path) -> None:
    train(_datasets(sleep).iter(BATCH), lambda batch: batch["x"])


def datasets_loader(folder: Path) -> None:
    train(DataLoader(_datasets(burn), BATCH, num_workers=1), lambda batch: batch["x"])


def mosaic_streaming(folder: Path) -> None:
    import numpy
    import streaming

    class Slow(streaming.StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            sleep()
            return super().__getitem__(at)

    with streaming.MDSWriter(out=str(folder / "remote"), columns={"x": "ndarray:float32"}) as out:
        for index in range(12 * STEPS):
            out.write({"x": numpy.full(WIDTH, index % 7, dtype=numpy.float32)})
    samples = Slow(remote=str(folder / "remote"), local=str(folder / "local"), batch_size=BATCH)
    train(streaming.StreamingDataLoader(samples, batch_size=BATCH, num_workers=1), lambda batch: batch["x"])


def dali(folder: Path) -> None:
    import numpy
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    def sample(info: Any) -> Any:
        sleep()
        return numpy.full(WIDTH, info.idx_in_epoch % 7, dtype=numpy.float32)

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, exec_dynamic=False)
    def pipeline() -> Any:
        return fn.external_source(source=sample, batch=False)

    built = pipeline()
    built.build()
    train(DALIGenericIterator(built, ["x"]), lambda batch: batch[0]["x"])


# -- batches without a library


def garbage(folder: Path) -> None:
    train(DataLoader(Garbage(), BATCH))


def queue_and_thread(folder: Path) -> None:
    ready: queue.Queue[torch.Tensor | None] = queue.Queue(2)
    samples = Samples()

    def fill() -> None:
        for number in range(STEPS):
            ready.put(samples.batch(number))
        ready.put(None)

    threading.Thread(target=fill, daemon=True).start()
    train(iter(ready.get, None))


def _fill(ready: Any) -> None:
    samples = Samples(burn)
    for number in range(STEPS):
        ready.put(samples.batch(number).numpy())


def queue_and_process(folder: Path) -> None:
    import multiprocessing

    ready = multiprocessing.Queue(2)
    multiprocessing.Process(target=_fill, args=(ready,), daemon=True).start()
    train((ready.get() for _ in range(STEPS)), torch.from_numpy)


def futures(folder: Path) -> None:
    samples = Samples()

    def batches() -> Iterator[torch.Tensor]:
        with ThreadPoolExecutor(1) as pool:
            following = pool.submit(samples.batch, 0)
            for number in range(STEPS):
                ready, following = following, pool.submit(samples.batch, number + 1)
                yield ready.result()

    train(batches())


# -- engines: one rank reads slowly


def _slow_on_one_rank() -> DataLoader[torch.Tensor]:
    return DataLoader(Samples((lambda: time.sleep(0.008)) if RANK == LATE else None, 100 * STEPS), BATCH)


def _deepspeed(stage: int, accumulated: int = 1) -> None:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    model = net()
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": accumulated,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    clock, loss = Clock(), torch.zeros(())
    for number, batch in enumerate(clock.waits(_slow_on_one_rank()), 1):
        loss = engine(batch.repeat(32, 1)).square().mean()
        engine.backward(loss)
        engine.step()
        if number == STEPS * accumulated:
            break
    _leave(clock, loss)


def _leave(clock: Clock, loss: torch.Tensor) -> None:
    import torch.distributed as dist

    clock.tell(STEPS, loss.item())
    dist.barrier()
    time.sleep(0.3)  # until the threads of gloo have dropped their tensors: torch can hang otherwise
    dist.destroy_process_group()


def zero_1(folder: Path) -> None:
    _deepspeed(1)


def zero_2_accumulated(folder: Path) -> None:
    _deepspeed(2, 2)


def zero_3(folder: Path) -> None:
    _deepspeed(3)


def deepspeed_pipeline(folder: Path) -> None:
    """The first stage reads, so its reads are slow here."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed
    from deepspeed.pipe import PipelineModule

    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, 896), nn.ReLU(), nn.Linear(896, WIDTH)) for _ in range(4)]
    model = PipelineModule(layers, num_stages=RANKS, loss_fn=lambda out, wanted: (out - wanted).square().mean())
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": 4,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    slow = (lambda: time.sleep(0.002)) if RANK == 0 else None
    clock, loss = Clock(), torch.zeros(())
    batches = clock.waits((batch, batch) for batch in DataLoader(Samples(slow, 100 * STEPS), BATCH))
    clock.begun = time.monotonic()
    for _ in range(STEPS):
        loss = engine.train_batch(batches)
    _leave(clock, loss)


def ignite(folder: Path) -> None:
    import torch.distributed as dist
    from ignite.engine import Engine

    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    clock = Clock()

    def update(engine: Any, batch: torch.Tensor) -> torch.Tensor:
        loss = model(batch.repeat(32, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if engine.state.iteration == STEPS:
            engine.terminate()
        return loss.detach()

    engine = Engine(update)
    engine.run(clock.waits(_slow_on_one_rank()), epoch_length=100 * STEPS)
    _leave(clock, engine.state.output)


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]](Path(sys.argv[2]))
