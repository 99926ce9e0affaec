"""A loop whose data worker dies in its tenth batch: `signal` or `status`. With `elsewhere`, the loop is not waiting."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

HOW = sys.argv[1]


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 10:
            if HOW == "elsewhere":
                time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL) if HOW != "status" else os._exit(3)
        return torch.ones(4)


if __name__ == "__main__":
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, batch in enumerate(DataLoader(Samples(), 1, num_workers=1, prefetch_factor=4)):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        if HOW == "elsewhere" and number == 8:
            time.sleep(5)
