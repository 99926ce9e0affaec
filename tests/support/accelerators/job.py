"""One rank of some cases: `job.py RANK SIZE PORT FOLDER SHAPE:FAULT…`. Writes what its device did in each case."""

from __future__ import annotations

import io
import json
import linecache
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import simdevice
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import whyidle
from accelerators.shapes import BUILDERS, WIDTH

STEPS, SAVE_EVERY, BATCH = 12, 5, 8
LATE, SAVES = 1, 0
"""The rank with slow reads or slow compute, and the rank that saves."""
LINK_MS, SLOW_LINK_MS, HIDDEN_MS = 1.0, 15.0, 5.0
READ_SECONDS, SAVE_SECONDS, SLOWER = 0.06, 0.3, 1.6


class Samples(Dataset[torch.Tensor]):
    def __init__(self, seconds: float):
        self._seconds = seconds

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._seconds and index % BATCH == 0:
            time.sleep(self._seconds)
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


class SlowFile(io.BytesIO):
    """A file on a slow disk, once in each save."""

    def flush(self) -> None:
        time.sleep(SAVE_SECONDS)


class Spans:
    """Where the host was and when, in ns of CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self.data: list[tuple[int, int]] = []
        self.save: list[tuple[int, int]] = []
        self.barrier: list[tuple[int, int]] = []

    def batches(self, loader: DataLoader[torch.Tensor]) -> Iterator[torch.Tensor]:
        batches = iter(loader)
        while True:
            begun = time.monotonic_ns()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.data.append((begun, time.monotonic_ns()))
            yield batch


def barrier(spans: Spans) -> None:
    """The host itself waits in it, for a device and for the other ranks."""
    begun = time.monotonic_ns()
    dist.barrier()
    spans.barrier.append((begun, time.monotonic_ns()))


def save(model: torch.nn.Module, spans: Spans) -> None:
    begun = time.monotonic_ns()
    torch.save({"rank": dist.get_rank()}, SlowFile())
    spans.save.append((begun, time.monotonic_ns()))


def run(shape: str, fault: str) -> dict[str, Any]:
    rank = dist.get_rank()
    simdevice.set_collective_time({"slow-link": SLOW_LINK_MS, "hidden": HIDDEN_MS}.get(fault, LINK_MS))
    slower = SLOWER if fault == "slow-compute" and rank == LATE else 1.0
    model, step = BUILDERS[shape](slower * {2: 1, 4: 3}[dist.get_world_size()])
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    spans, losses = Spans(), []
    loader = DataLoader(Samples(READ_SECONDS if fault == "slow-reads" and rank == LATE else 0.0), BATCH)
    dist.barrier()
    torch.accelerator.synchronize()
    simdevice.clear_schedule()
    for number, batch in enumerate(spans.batches(loader), 1):
        loss = step(batch.to("sim"))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(0.0 if loss is None else loss.item())
        if fault == "checkpoint" and rank == SAVES and number % SAVE_EVERY == 0:
            save(model, spans)
    torch.accelerator.synchronize()
    barrier(spans)
    whyidle.detach()  # here, so that it accounts only for the time that is compared
    return {
        "losses": losses,
        "spans": vars(spans),
        "home": torch.accelerator.current_stream().stream_id,
        "schedule": simdevice.schedule(),
    }


def main(rank: int, size: int, port: int, folder: Path, cases: list[str]) -> None:
    torch.set_num_threads(1)
    simdevice.load()
    simdevice.set_real_time(True)
    dist.init_process_group("cpu:gloo,sim:sim", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    for case in cases:
        shape, _, fault = case.partition(":")
        os.environ["WHYIDLE_DIR"] = str(folder / case)
        os.environ["WHYIDLE_RUN"] = case
        assert whyidle.attach()
        with simdevice.callers("/torch_hooks/") as calls:
            told = run(shape, fault)
        told["calls"] = sorted({call for call, where in calls if not _handed_on(where)})
        told["contexts"] = simdevice.contexts()
        (folder / f"{case}.{rank}.json").write_text(json.dumps(told))
        dist.barrier()
    dist.destroy_process_group()


def _handed_on(where: str) -> bool:
    """Whether a line of a hook calls the training's own function."""
    file, _, line = where.rpartition(":")
    text = linecache.getline(file, int(line))
    return "original(" in text or "self._stream.wait_" in text


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
