"""A loop with a hand-written loader that blocks: `loader.py FOLDER`. Its device is idle most of the time.

No hook sees the loader, so for the hooks the whole loop is compute. The loop ends when FOLDER/enough exists, and writes
how many seconds it took to FOLDER/seconds.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import simdevice
import torch

import whyidle
from accelerators.load import BUSY_MS, PERIOD_MS


def batches(enough: Path) -> Iterator[torch.Tensor]:
    """One batch per period, however long a step takes."""
    begun = time.monotonic()
    for number in itertools.count(1):
        if enough.exists():
            return
        time.sleep(max(0.0, begun + number * PERIOD_MS / 1e3 - time.monotonic()))
        yield torch.ones(8, 4)


def main(folder: Path) -> None:
    simdevice.load()
    os.environ["WHYIDLE_DIR"], os.environ["WHYIDLE_RUN"] = str(folder / "ledgers"), "loader"
    assert whyidle.attach()
    model = torch.nn.Linear(4, 4).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    begun = time.monotonic()
    for batch in batches(folder / "enough"):
        simdevice.busy(model(batch.to("sim")), BUSY_MS / 2, BUSY_MS / 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.accelerator.synchronize()
    (folder / "seconds").write_text(str(time.monotonic() - begun))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
