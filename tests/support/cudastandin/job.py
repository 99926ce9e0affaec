"""One rank of a case: `job.py PLAN FOLDER`. Its place comes from the environment, as under torchrun."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist

from cudastandin import loops, own_code
from cudastandin.marks import Marks
from cudastandin.plan import Plan

TIMEOUT = timedelta(seconds=float(os.environ.get("STANDIN_TIMEOUT_S", "60")))


def main(plan: Plan, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.ops.load_library(str(Path(torch.__file__).with_name("lib") / "libstandin_values.so"))
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.cuda.set_device(rank)
    if size > 1:
        # With a device, groups connect when they are made, and not in the first step.
        dist.init_process_group("nccl", timeout=TIMEOUT, device_id=torch.device("cuda", rank))
    marks = Marks()
    loop = getattr(loops, plan.loop, None) or getattr(own_code, plan.loop)
    loop(plan, marks)
    if os.environ.get("STANDIN_LEAVE"):
        return
    with marks.during(marks.end):
        torch.cuda.synchronize()
    marks.write(folder / f"told.{rank}.json")
    if size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Plan.of(sys.argv[1]), Path(sys.argv[2]))
