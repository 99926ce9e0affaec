"""What a loop does after a bracket in which the training began, or in which an evaluation was, is in its own phase."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support_sites import clean_env
from support_training import ledgers_of

MARKED = """
import time, torch, whyidle
whyidle.attach()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(20):
    time.sleep(0.01)  # the loop makes its batch
    with whyidle.phase("compute"):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.01)
"""
SAVED = """
import time, torch, whyidle
from torch.utils.data import DataLoader
whyidle.attach()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def save_best_model(loader):
    with whyidle.phase("eval"), torch.no_grad():
        for batch in loader:
            model(batch)
    torch.save(model.state_dict(), "best.pt")
def main():
    for epoch in range(4):
        for batch in DataLoader(torch.ones(20, 4), batch_size=2):
            model(batch).sum().backward()
            optimizer.step()
            time.sleep(0.01)
        save_best_model(DataLoader(torch.ones(20, 4), batch_size=2))
main()
"""


def seconds(program: str, folder: Path) -> tuple[dict[str, float], int]:
    """What a program has spent by cause since its first step, and the number of its saves."""
    (folder / "train.py").write_text(program)
    env = clean_env(WHYIDLE_DIR=str(folder / "ledgers"))
    subprocess.run([sys.executable, "train.py"], cwd=folder, env=env, check=True)
    ledger = ledgers_of(folder)[0]
    before = dict(zip(ledger.cause_ns, ledger.words["window_cause_ns"], strict=True))
    found = {cause: (ns - before[cause]) / 1e9 for cause, ns in ledger.cause_ns.items()}
    return found, ledger.words["checkpoints"][0]


def test_the_loop_goes_on_after_a_bracket_in_which_its_training_has_begun(tmp_path: Path) -> None:
    found, _ = seconds(MARKED, tmp_path)
    assert found["startup"] < 0.1
    assert sum(found.values()) > 0.35


def test_the_loop_goes_on_after_a_save_with_an_evaluation_in_it(tmp_path: Path) -> None:
    found, saves = seconds(SAVED, tmp_path)
    assert found["checkpoint_write"] + found["checkpoint_cpu"] < 0.2
    assert saves == 4
