"""A training that dies and continues when it is started again: ``restarts.py STEPS KILL_AT SAVE_AT HOW``.

Attempt 0 saves after step SAVE_AT (0: never), and the last rank ends after step KILL_AT, by HOW: exit or kill. Later
attempts restore the save, if there is one, and run until step STEPS.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import account
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
STEPS, KILL_AT, SAVE_AT = map(int, sys.argv[1:4])
HERE = Path(os.environ["ACCOUNT_DIR"])
FILE, BEEN = HERE / "state.pt", HERE / f"been-{RANK}"

first = not BEEN.exists()
BEEN.touch()
if WORLD > 1:
    # Not with the launcher's store: there, torch 2.13 may find the addresses of the ranks that died.
    meeting = HERE / f"meeting-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=RANK, world_size=WORLD)
torch.manual_seed(1)
net = torch.nn.Linear(64, 64)
done = 0
if FILE.exists():
    state = torch.load(FILE)
    net.load_state_dict(state["net"])
    done = state["done"]
model = DistributedDataParallel(net) if WORLD > 1 else net
optimizer = torch.optim.SGD(model.parameters(), 0.1)
account.facts["from"] = done
for batch in DataLoader(torch.randn((STEPS - done) * 2, 64), 2):
    model(batch).square().mean().backward()
    # Steps are long, as of a larger model, so that the file of a killed rank lacks few of them.
    until = time.perf_counter() + 0.06
    while time.perf_counter() < until:
        pass
    optimizer.step()
    optimizer.zero_grad()
    done += 1
    account.counts["steps"] += 1
    if first and done == SAVE_AT and not RANK:
        torch.save({"net": net.state_dict(), "done": done}, FILE.with_suffix(".new"))
        os.replace(FILE.with_suffix(".new"), FILE)
    if first and done == KILL_AT and RANK == WORLD - 1:
        if sys.argv[4] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(9)
if WORLD > 1:
    dist.destroy_process_group()
