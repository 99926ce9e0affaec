"""One rank of a run that hangs after some steps: `hang.py RANK SIZE PORT FOLDER HOW`. The host continues, the device
does not.

HOW: `device`: rank 1's device computes for ever; `host`: rank 1's host never gets its next batch.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import simdevice
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import whyidle
from accelerators.shapes import BUILDERS, WIDTH

HANGS_AT, SECONDS = 6, 120.0


class Samples(Dataset[torch.Tensor]):
    def __init__(self, hangs: bool):
        self._hangs = hangs

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._hangs and index == HANGS_AT:
            time.sleep(SECONDS)
        return torch.ones(WIDTH)


def main(rank: int, size: int, port: int, folder: Path, how: str) -> None:
    torch.set_num_threads(1)
    simdevice.load()
    os.environ["WHYIDLE_DIR"], os.environ["WHYIDLE_RUN"] = str(folder / "ledgers"), "hangs"
    assert whyidle.attach()
    dist.init_process_group("cpu:gloo,sim:sim", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    simdevice.set_collective_time(1.0)
    model, step = BUILDERS["ddp"](0.2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number, batch in enumerate(DataLoader(Samples(rank == 1 and how == "host"), None)):
        if number == HANGS_AT and rank == 1 and how == "device":
            simdevice.occupy(SECONDS * 1e3)
        if number == HANGS_AT:
            (folder / f"hangs-{rank}").touch()
        step(batch[None].to("sim"))
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
