"""A loop that takes each batch with torch.load from a file of the folder FOLDER: `loaded.py FOLDER [logs]`.

Once it goes back to a checkpoint. With `logs` it appends to a log instead, with fsync, and saves once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

STEPS = 20


def main() -> None:
    folder, logs = Path(sys.argv[1]), len(sys.argv) > 2
    folder.mkdir(parents=True)
    net = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    torch.save({"model": net.state_dict(), "step": 0}, folder / "checkpoint.pt")
    for number in range(STEPS):
        torch.save((torch.ones(4, 8), torch.ones(4, 2)), folder / f"{number}.pt")
    for number in range(STEPS):
        inputs, labels = torch.load(folder / f"{number}.pt") if not logs else (torch.ones(4, 8), torch.ones(4, 2))
        torch.nn.functional.mse_loss(net(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == STEPS // 2 and not logs:
            net.load_state_dict(torch.load(folder / "checkpoint.pt")["model"])
        if number == STEPS // 2 and logs:
            torch.save(net.state_dict(), folder / "saved.pt")
        if logs:
            with open(folder / "metrics.jsonl", "a") as file:
                file.write("{}\n")
                file.flush()
                os.fsync(file.fileno())


if __name__ == "__main__":
    main()
