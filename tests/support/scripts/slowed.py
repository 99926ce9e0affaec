"""slowed.py PART SECONDS SCRIPT [ARGUMENT ...]: runs a script in which a part of each step takes at least so long.

PART is `transfers`, those of DistributedDataParallel, or `compute`, its forward pass. Both ranks do the same.
"""

from __future__ import annotations

import runpy
import sys
import threading
import time
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

part, seconds, *sys.argv = sys.argv[1], float(sys.argv[2]), *sys.argv[3:]


def transfer(bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    reduced = allreduce_hook(distributed.group.WORLD, bucket)
    ended: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def end() -> None:
        time.sleep(seconds)
        ended.set_result(reduced.wait())

    threading.Thread(target=end, daemon=True).start()
    return ended


class Slowed(nn.parallel.DistributedDataParallel):
    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        if part == "transfers":
            self.register_comm_hook(None, lambda _, bucket: transfer(bucket))  # torch refuses annotations that are text

    def forward(self, *args: Any, **more: Any) -> Any:
        if part == "compute":
            time.sleep(seconds)
        return super().forward(*args, **more)


nn.parallel.DistributedDataParallel = Slowed  # type: ignore[misc]
runpy.run_path(sys.argv[0], run_name="__main__")
