"""DDP waits in C++ when it rebuilds its buckets: ranks wait there for one that is late for its second step."""

from __future__ import annotations

from pathlib import Path

import pytest
from support_forks import Forks

LATE_SECONDS = 0.5
SCRIPT = """
import multiprocessing
import os
import sys
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def join(rank, size, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)

def train(late_seconds):
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        if step == 1:
            time.sleep(late_seconds)
        model(torch.randn(2, 8)).sum().backward()
        optimizer.step()

def train_once(rank, folder):
    join(rank, 2, f"{folder}/of-two")
    train(rank * LATE_SECONDS)
    dist.barrier()

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = sys.argv[1]
    if "RANK" in os.environ:
        join(int(os.environ["RANK"]), 2, f"{folder}/of-two")
        train(0)
        train(int(os.environ["RANK"]) * LATE_SECONDS)
        dist.barrier()
        sys.exit()
    join(0, 1, f"{folder}/of-one")
    train(0)
    dist.destroy_process_group()
    ranks = [multiprocessing.get_context("fork").Process(target=train_once, args=(rank, folder)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0
""".replace("LATE_SECONDS", str(LATE_SECONDS))


@pytest.mark.parametrize("ranks", [2, 0], ids=["its second model", "a forked child"])
def test_a_wait_for_the_rebuild_of_buckets_is_not_host_time_of_a_rank_that_trained_before(
    ranks: int, forks: Forks, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    outcome, _ = forks.run((str(script), str(tmp_path)), tmp_path, ranks)
    assert outcome.returncode == 0, outcome.stderr
    (first,) = (one for one in outcome.ledgers if (one.rank, one.world_size) == (0, 2))
    assert sum(slot.waited for slot in first.slots) / 1e9 > 0.9 * LATE_SECONDS
    assert first.cause_ns["host_blocked"] / 1e9 < 0.5 * LATE_SECONDS
