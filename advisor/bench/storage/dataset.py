"""Measures a dataset of files: loaded as a whole, and read sample by sample in random order, as in a training."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import caches, loading
from .files import Writer, read_whole, sync_directory
from .mlperf import utilisation
from .plan import BenchError, Found, Measure, Plan, Tell

if TYPE_CHECKING:
    from torch import Tensor

LOOP, REPLAY = "samples: loop", "samples: loop from memory"
"""Names of measures that other modules look up."""

_REPLAYED_BYTES = 64 << 20
_IN_A_FOLDER = 1000


@dataclass(slots=True)
class Dataset:
    """Samples in files, as a dataset for torch's DataLoader. ``sizes``: for each file, the sizes of its samples."""

    plan: Plan
    paths: list[str] = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)
    index: list[tuple[int, int, int]] = field(default_factory=list)
    """For each sample: index of its file, offset, size."""
    bytes: int = 0

    def add(self, path: str, sizes: list[int]) -> None:
        offset = 0
        for size in sizes:
            self.index.append((len(self.paths), offset, size))
            offset += size
        self.paths.append(path)
        self.sizes.append(sizes)
        self.bytes += offset

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, number: int) -> tuple[Tensor, int, float]:
        file, offset, size = self.index[number]
        begun = time.perf_counter()
        descriptor = os.open(self.paths[file], os.O_RDONLY)
        try:
            data = bytearray(size)
            done = 0
            while done < size:
                got = os.preadv(descriptor, [memoryview(data)[done:]], offset + done)
                if not got:
                    raise BenchError(f"{self.paths[file]} is shorter than what was written")
                done += got
        finally:
            os.close(descriptor)
        return _handed(data, self.plan), size, time.perf_counter() - begun


class Replay:
    """Samples of the same sizes in memory: they show how fast the loader would be if storage took no time."""

    def __init__(self, plan: Plan):
        self._length = plan.files * plan.samples_per_file
        self._kept: list[tuple[Tensor, int]] = []
        sizes, size = random.Random(0), 0
        while len(self._kept) < self._length and size < _REPLAYED_BYTES:
            sample = _size(plan, sizes)
            self._kept.append((_handed(bytearray(os.urandom(sample)), plan), sample))
            size += sample

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> tuple[Tensor, int, float]:
        begun = time.perf_counter()
        data, read = self._kept[number % len(self._kept)]
        return data.clone(), read, time.perf_counter() - begun


def _handed(data: bytearray, plan: Plan) -> Any:
    import torch

    tensor = torch.frombuffer(data, dtype=torch.uint8)
    return tensor[: plan.handed_bytes].clone() if plan.handed_bytes else tensor


def write(place: str, plan: Plan, tell: Tell) -> tuple[Dataset, Writer]:
    """Writes the files until all are written or the time is over. Raises OSError."""
    dataset, writer, sizes = Dataset(plan), Writer(), random.Random(0)
    begun = time.perf_counter()
    for number in range(plan.files):
        folder = os.path.join(place, f"folder-{number // _IN_A_FOLDER}")
        if number % _IN_A_FOLDER == 0:
            os.mkdir(folder)
        path = os.path.join(folder, f"{number}.bin")
        samples = [_size(plan, sizes) for _ in range(plan.samples_per_file)]
        writer.write(path, sum(samples))
        dataset.add(path, samples)
        tell(number / plan.files, "writing the dataset")
        if plan.seconds and time.perf_counter() - begun > plan.seconds:
            break
    for folder in {os.path.dirname(path) for path in dataset.paths}:
        sync_directory(folder)
    return dataset, writer


def _size(plan: Plan, sizes: random.Random) -> int:
    if not plan.sample_deviation:
        return plan.sample_bytes
    # Drawn as DLIO does, but cut on both sides, so that the mean stays and the free space is sufficient.
    drawn = sizes.gauss(plan.sample_bytes, plan.sample_deviation)
    return max(1, min(round(drawn), 2 * plan.sample_bytes - 1))


def measure_load(place: str, plan: Plan, tell: Tell) -> Found:
    """Lists all files and reads each of them once, one after the other, in one process. Raises OSError."""
    dataset, writer = write(place, plan, lambda done, note: tell(done / 2, note))
    cached = caches.drop(dataset.paths)
    if plan.drop_caches:
        caches.drop_all()
    each: list[float] = []
    read = 0
    begun = time.perf_counter()
    found = [
        (entry.path, entry.stat().st_size)
        for folder in os.scandir(place)
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name)
    ]
    for path, _ in found:
        before = time.perf_counter()
        read += read_whole(path)
        each.append(time.perf_counter() - before)
        tell(0.5 + read / dataset.bytes / 2, "loading the dataset")
        if plan.seconds and time.perf_counter() - begun > plan.seconds:
            break
    seconds = time.perf_counter() - begun
    return [
        Measure("dataset: write files", writer.bytes, len(writer.each), "files", writer.seconds, writer.each),
        Measure("dataset: load", read, len(each), "files", seconds, each, cached),
    ]


def measure_samples(place: str, plan: Plan, tell: Tell) -> Found:
    """Reads samples in random order through a DataLoader. Raises OSError, BenchError."""
    dataset, _ = write(place, plan, lambda done, note: tell(done / 2, note))
    if len(dataset) < plan.batch:  # the plan has enough samples, so the time was too short
        raise BenchError(
            f"only {len(dataset)} samples could be written in {plan.seconds:g} s, and a batch has {plan.batch}: "
            "give more time (--seconds), or choose smaller samples"
        )
    cached = caches.drop(dataset.paths)
    if plan.drop_caches:
        caches.drop_all()
    loop = loading.run(
        loading.loader(dataset, plan, True), plan, lambda done, _: tell((1 + done) / 2, "reading"), len(dataset)
    )
    also = {
        "start_seconds": loop.start,
        "wait_seconds": sum(loop.waits),
        "closing_seconds": loop.closing,
        "whole": loop.whole and len(dataset.paths) == plan.files,
        "dataset_bytes": dataset.bytes,
        "au": utilisation(loop.ends, plan.compute),
    }
    return [
        Measure(LOOP, loop.bytes, loop.samples, "samples", loop.seconds, loop.waits, cached, also=also),
        Measure("samples: one read", seconds=sum(loop.reads), each=loop.reads, cached=cached),
    ]


def measure_replay(place: str, plan: Plan, tell: Tell) -> Found:
    """Runs the same loop on samples in memory. ``place`` is not used."""
    dataset = Replay(plan)
    loop = loading.run(loading.loader(dataset, plan, True), plan, tell, len(dataset))
    return [Measure(REPLAY, loop.bytes, loop.samples, "samples", loop.seconds, loop.waits, direct=False)]
