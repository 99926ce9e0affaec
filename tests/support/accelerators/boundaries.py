"""One rank that counts the events which the hooks record in steps of FSDP2: `boundaries.py RANK SIZE PORT FOLDER`.

Writes [reshard after forward, microbatches, gradients reduced in each, timed events, count per group and microbatch].
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import simdevice
import torch
import torch.distributed as dist

import whyidle
from accelerators.shapes import WIDTH
from whyidle.torch_hooks import accelerators

FEW, MANY, STEPS = 3, 7, 5
FORWARD_MS, BACKWARD_MS, LINK_MS = 0.6, 1.2, 1.0


def counted(layers: int, reshard: bool, microbatches: int, reduced: bool) -> float:
    """Events in a step. The first steps, whose gathers began before the hooks knew their streams, do not count."""
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(*(simdevice.Block(WIDTH, FORWARD_MS, BACKWARD_MS) for _ in range(layers))).to("sim")
    for block in model:
        fully_shard(block, reshard_after_forward=reshard)
    root: Any = fully_shard(model, reshard_after_forward=reshard)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    counts: list[int] = []
    for _ in range(STEPS):
        before = len(_recorded)
        for number in range(microbatches):
            root.set_requires_gradient_sync(reduced or number == microbatches - 1)
            model(torch.ones(2, WIDTH, device="sim")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        counts.append(len(_recorded) - before)
    torch.accelerator.synchronize()
    return statistics.median(counts[2:])


_recorded: list[None] = []


def count_records() -> None:
    original = accelerators.DeviceEvents.record

    def record(events: Any) -> Any:
        _recorded.append(None)
        return original(events)

    accelerators.DeviceEvents.record = record  # type: ignore[method-assign]


def main(rank: int, size: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    simdevice.load()
    module: Any = torch.get_device_module("sim")
    dist.init_process_group("cpu:gloo,sim:sim", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    simdevice.set_collective_time(LINK_MS)
    os.environ["WHYIDLE_DIR"], os.environ["WHYIDLE_RUN"] = str(folder / "ledgers"), "counts"
    assert whyidle.attach()
    count_records()
    found = []
    cases = [(*case, True) for case in itertools.product((True, False), ((1, True), (3, True), (3, False)))]
    for reshard, (microbatches, reduced), timed in [*cases, (True, (1, True), False)]:
        if not timed:  # streams of a type without a Python class, as a device's module may have them
            module.Stream = lambda *args, **kwargs: torch.Stream(device="sim")
        few, many = (counted(layers, reshard, microbatches, reduced) for layers in (FEW, MANY))
        found.append((reshard, microbatches, reduced, timed, (many - few) / (MANY - FEW) / microbatches))
    dist.barrier()
    whyidle.detach()
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
