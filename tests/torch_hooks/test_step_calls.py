"""What the hooks cost a step, counted instead of timed: the Python functions that they call on the training thread.

Each call costs up to 1 µs in a real step, where the caches are cold. These counts are the same on every machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support_forks import Forks

SCRIPT = """
import pathlib, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

out, ranks = pathlib.Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
model, rank = nn.Linear(8, 1), 0
if ranks > 1:
    torch.distributed.init_process_group("gloo")
    model, rank = nn.parallel.DistributedDataParallel(model), torch.distributed.get_rank()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
calls = 0

def profile(frame, event, arg):
    global calls
    if event == "call" and frame.f_globals.get("__name__", "").startswith("whyidle."):
        calls += 1

counts = []
for x, y in DataLoader(TensorDataset(torch.randn(1200, 8), torch.randn(1200, 1)), batch_size=4):
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    counts.append(calls)
    if len(counts) == 100:
        sys.setprofile(profile)
sys.setprofile(None)
steps = sorted(b - a for a, b in zip(counts[100:], counts[101:]))
(out / str(rank)).write_text(str(steps[0]))
if ranks > 1:
    torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize(("ranks", "most"), [(1, 29), (2, 54)])
def test_a_plain_step_makes_few_python_calls(ranks: int, most: int, tmp_path: Path, forks: Forks) -> None:
    """The calls of the step with the fewest: others also read meters, write the ledger or compare waits."""
    script, out = tmp_path / "train.py", tmp_path / "calls"
    script.write_text(SCRIPT)
    out.mkdir()
    outcome, codes = forks.run((str(script), str(out), str(ranks)), tmp_path, ranks)
    assert codes == [0] * ranks, outcome.stderr
    for rank in range(ranks):
        assert 10 < int((out / str(rank)).read_text()) <= most
