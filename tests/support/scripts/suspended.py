"""Training that spends most of its time in one phase, until the file `stop` appears; see test_suspensions.py."""

from __future__ import annotations

import ctypes
import datetime
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import whyidle

FOLDER = Path(os.environ["ACCOUNT_DIR"])
PHASE, SECONDS = sys.argv[1], float(sys.argv[2])
RANK = int(os.environ.get("RANK", "0"))
TOGETHER = "WORLD_SIZE" in os.environ
DEVICE = os.environ.get("ON", "cpu")


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        torch.ones(64, 64) @ torch.ones(64, 64)


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SECONDS if PHASE == "data" else 0.0)
        return torch.ones(4)


class Slowly:
    """A tensor that takes time to save."""

    def __reduce__(self) -> tuple[object, ...]:
        time.sleep(SECONDS)
        return (int, ())


def crowd() -> None:
    """Eight processes compute on the CPU of this one, which it shares with them."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for _ in range(8):
        if not os.fork():
            while os.getppid() != 1 and not (FOLDER / "stop").exists():
                pass
            os._exit(0)
    os.nice(19)


def main() -> None:
    if TOGETHER:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    model: torch.nn.Module = torch.nn.Linear(4, 4)
    if DEVICE == "sim":
        sys.path.insert(0, str(Path(__file__).parents[1]))
        import simdevice

        simdevice.load()
        model = simdevice.Block(4, 5.0, 10.0).to(DEVICE)
    if TOGETHER:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    workers = 1 if PHASE == "data" else 0
    steps = 0
    while True:  # all ranks end after the same step
        for batch in torch.utils.data.DataLoader(Slow(), batch_size=1, num_workers=workers):
            optimizer.zero_grad()
            busy(SECONDS if PHASE == "compute" else 0.002)
            model(batch.to(DEVICE)).sum().backward()
            optimizer.step()
            steps += 1
            if PHASE == "queue" and steps == 5:  # what comes before would take minutes
                crowd()
            if PHASE == "host":
                time.sleep(SECONDS)
            if PHASE == "lock":  # a PyDLL keeps Python's lock
                ctypes.PyDLL(None).usleep(round(1e6 * SECONDS))
            if PHASE == "queue":
                busy(SECONDS / 10)
            if PHASE == "checkpoint":
                torch.save({"model": model.state_dict(), "slow": Slowly()}, FOLDER / f"{RANK}.pt")
            if PHASE == "collective" and RANK == 1:
                with whyidle.phase("data"):
                    time.sleep(SECONDS)
            ended = torch.tensor(float((FOLDER / "stop").exists()))
            if TOGETHER:
                dist.all_reduce(ended)
            if ended.item():
                return


if __name__ == "__main__":
    main()
    if TOGETHER:
        dist.destroy_process_group()
