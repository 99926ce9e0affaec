"""Saves from a separate process, as DCP can, and waits for that save. The script does not use whyidle."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType


def main() -> None:
    dist.init_process_group("gloo")
    net = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number, batch in enumerate(torch.utils.data.DataLoader(torch.ones(12, 64), 2), 1):
        net(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 4:
            saved = dcp.async_save(
                {"net": net.state_dict()},
                checkpoint_id=Path(os.environ["ACCOUNT_DIR"], "saved"),
                async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            )
    begun = time.monotonic()
    saved.result()
    print("waited", time.monotonic() - begun)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
