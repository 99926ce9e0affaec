"""One rank whose forked child continues next to it: `fork.py FOLDER`. Prints the hooks' calls of the device in the
child."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import simdevice
import torch
from torch.utils.data import DataLoader

import whyidle

BEFORE, AFTER = 300, 50  # steps, with about four boundaries each


def main(folder: Path) -> None:
    simdevice.load()
    os.environ["WHYIDLE_DIR"], os.environ["WHYIDLE_RUN"] = str(folder), "forks"
    assert whyidle.attach()
    model = torch.nn.Linear(4, 4).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train(steps: int) -> None:
        for batch in DataLoader(torch.ones(steps, 4), 1):  # pyright: ignore[reportArgumentType]
            model(batch.to("sim")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    train(BEFORE)
    child = os.fork()
    if not child:
        with simdevice.callers("/torch_hooks/") as calls:
            list(DataLoader(torch.ones(8, 4), 2))  # pyright: ignore[reportArgumentType]
            gc.collect()
        os._exit(len(calls))
    print("calls", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    train(AFTER)
    torch.accelerator.synchronize()
    whyidle.detach()
    # Without finalization. A backward pass is over for its caller while autograd's thread still drops what belonged to
    # it. If that thread gets no CPU until the interpreter ends, it asks for Python's lock then, in a destructor. Python
    # 3.11 ends the thread there, and C++ the process: "terminate called without an active exception".
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
