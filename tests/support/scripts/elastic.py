"""An elastic training: it continues from the last saved step with any number of ranks, until it is told to stop.

Each process writes its own file ``$ACCOUNT_DIR/<pid>.part``: ``rank world_size first_step last_step``. The file
``$ACCOUNT_DIR/stop`` ends the training, on all ranks after the same step.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import whyidle

HERE = Path(os.environ["ACCOUNT_DIR"])
STATE = HERE / "state.pt"


def write(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


whyidle.attach()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# Not with the launcher's store: there, torch 2.13 may find the addresses of the ranks that died.
shrunk = HERE / "shrunk"
meeting = HERE / f"meeting-{world}-{shrunk.exists()}"
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
if world < 4:
    shrunk.touch()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
done = 0
if STATE.exists():
    state = torch.load(STATE)
    model.module.load_state_dict(state["model"])
    done = state["done"]
begun, stop = done, torch.zeros(1)
while not stop.item():
    model(torch.randn(8, 64)).square().mean().backward()
    time.sleep(0.005)
    optimizer.step()
    optimizer.zero_grad()
    done += 1
    write(HERE / f"{os.getpid()}.part", f"{rank} {world} {begun} {done}")
    if not rank and done % 20 == 0:
        torch.save({"model": model.module.state_dict(), "done": done}, STATE.with_suffix(".new"))
        STATE.with_suffix(".new").replace(STATE)
    stop.fill_((HERE / "stop").exists())
    dist.all_reduce(stop, dist.ReduceOp.MAX)
dist.destroy_process_group()
