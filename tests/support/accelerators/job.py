"""One rank of some cases: `job.py RANK SIZE PORT FOLDER CASE…`. Writes what its device did in each case.

A case is SHAPE:FAULT, or the name of a loop.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import simdevice
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import whyidle
from accelerators import loops
from accelerators.host import BATCH, LATE, READ_SECONDS, SAVES, Samples, Spans, barrier, save
from accelerators.shapes import BUILDERS

STEPS, SAVE_EVERY = 12, 5
LINK_MS, SLOW_LINK_MS, HIDDEN_MS = 1.0, 15.0, 5.0
SLOWER = 1.6
LONGER = {"hsdp": 3, "tp-dp": 6}
"""How many times as much a device computes where four ranks run: their hosts take turns on two cores."""


def train(shape: str, fault: str, spans: Spans) -> list[float]:
    rank = dist.get_rank()
    simdevice.set_collective_time({"slow-link": SLOW_LINK_MS, "hidden": HIDDEN_MS}.get(fault, LINK_MS))
    slower = SLOWER if fault == "slow-compute" and rank == LATE else 1.0
    model, step = BUILDERS[shape](slower * LONGER.get(shape, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(Samples(STEPS, READ_SECONDS if fault == "slow-reads" and rank == LATE else 0.0), BATCH)
    start_together()
    losses = []
    for number, batch in enumerate(spans.batches(loader), 1):
        loss = step(batch.to("sim"))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(0.0 if loss is None else loss.item())
        if fault == "checkpoint" and rank == SAVES and number % SAVE_EVERY == 0:
            save(spans)
    return losses


def start_together() -> None:
    dist.barrier()
    torch.accelerator.synchronize()
    simdevice.clear_schedule()


def run(case: str) -> dict[str, Any]:
    spans, home = Spans(), None
    losses: list[float] = []
    shape, _, fault = case.partition(":")
    if fault:
        losses = train(shape, fault, spans)
    else:
        simdevice.set_collective_time(LINK_MS)
        start_together()
        home = getattr(loops, case)(spans)
    torch.accelerator.synchronize()
    barrier(spans)
    whyidle.detach()  # here, so that it accounts only for the time that is compared
    return {
        "losses": losses,
        "spans": vars(spans),
        "home": torch.accelerator.current_stream().stream_id if home is None else home,
        "schedule": simdevice.schedule(),
    }


def main(rank: int, size: int, port: int, folder: Path, cases: list[str]) -> None:
    torch.set_num_threads(1)
    simdevice.load()
    simdevice.set_real_time(True)
    dist.init_process_group("cpu:gloo,sim:sim", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    for case in cases:
        os.environ["WHYIDLE_DIR"] = str(folder / case)
        os.environ["WHYIDLE_RUN"] = case
        assert whyidle.attach()
        with simdevice.callers("/torch_hooks/") as calls:
            told = run(case)
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
