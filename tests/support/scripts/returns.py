"""A training that saves after each 4th step, and goes on from the newest checkpoint or from that of $RETURN_TO:
``returns.py HOW [--lr RATE]``.

Its first attempt ends after step 10, by HOW: end, kill (the last rank is killed), or term (all ranks get SIGTERM, for
which they have a handler). Later ones end after step 14.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import account
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
HOW = sys.argv[1]
RATE = float(sys.argv[3]) if len(sys.argv) > 3 else 0.1
FOLDER = Path(os.environ["ACCOUNT_DIR"]) / "checkpoints"
BEEN = FOLDER.with_name(f"been-{RANK}")
FIRST = not BEEN.exists()
UNTIL = 10 if FIRST else 14
BEEN.touch()


def stopped(number: int, frame: FrameType | None) -> None:
    account.facts["handled"] = number
    os._exit(128 + number)


signal.signal(signal.SIGTERM, stopped)
account.facts["own handler"] = signal.getsignal(signal.SIGTERM) is stopped
FOLDER.mkdir(exist_ok=True)
if WORLD > 1:
    dist.init_process_group("gloo")
torch.manual_seed(1)
net = torch.nn.Linear(16, 16)
done = 0
saved = sorted(FOLDER.glob("step-*.pt"), key=lambda path: int(path.stem[5:]))
if chosen := os.environ.get("RETURN_TO"):
    saved = [FOLDER / f"step-{chosen}.pt"]
if saved:
    done = int(saved[-1].stem[5:])
    net.load_state_dict(torch.load(saved[-1]))
if WORLD > 1:
    dist.barrier()  # all have chosen theirs
model = DistributedDataParallel(net) if WORLD > 1 else net
optimizer = torch.optim.SGD(model.parameters(), RATE)
account.facts["from"] = done
while done < UNTIL:
    model(torch.randn(4, 16)).square().mean().backward()
    time.sleep(0.02)
    optimizer.step()
    optimizer.zero_grad()
    done += 1
    if done % 4 == 0 and not RANK:
        new = FOLDER / "new"
        torch.save(net.state_dict(), new)
        os.replace(new, FOLDER / f"step-{done}.pt")
time.sleep(0.5)  # a thread writes the ledger each 100 ms, or later on busy cores
if WORLD > 1:
    dist.barrier()
if FIRST and HOW == "kill":
    if RANK == WORLD - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("another rank was killed")
if FIRST and HOW == "term":
    os.kill(os.getpid(), signal.SIGTERM)
if WORLD > 1:
    dist.destroy_process_group()
