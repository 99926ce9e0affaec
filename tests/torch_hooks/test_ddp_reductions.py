"""How often DDP reduces gradients, and how often it reduces gradients that it adds to those reduced before."""

from __future__ import annotations

from pathlib import Path

import pytest
from support_forks import Forks

SCRIPT = """
import contextlib
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

kind, steps, batches = sys.argv[1], 10, 4
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.LBFGS(model.parameters(), 1e-3, max_iter=3, tolerance_change=0, tolerance_grad=0) \
    if kind == "lbfgs" else torch.optim.SGD(model.parameters(), 0.1)

def learn():
    loss = model(torch.ones(2, 8)).square().mean()
    loss.backward()
    return loss

def closure():
    optimizer.zero_grad()
    return learn()

for _ in range(steps):
    if kind == "lbfgs":
        optimizer.step(closure)
        continue
    for batch in range(1 if kind == "plain" else batches):
        with model.no_sync() if kind == "no_sync" and batch < batches - 1 else contextlib.nullcontext():
            learn()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("kind", "reduced", "again"), [("plain", 1, 0), ("no_sync", 1, 0), ("accumulated", 4, 3), ("lbfgs", 3, 0)]
)
def test_counts_reductions_that_no_sync_would_save(
    kind: str, reduced: int, again: int, tmp_path: Path, forks: Forks
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    outcome, codes = forks.run((str(script), kind), tmp_path, 2)
    assert codes == [0, 0], outcome.stderr
    for ledger in outcome.ledgers:
        assert (ledger.reduced / ledger.steps, ledger.reduced_again / ledger.steps) == (reduced, again)
