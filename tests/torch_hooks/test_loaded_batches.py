"""A batch that a loop takes with torch.load is not a restore, and a log that is written with fsync is not a save."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from support_forks import Forks
from support_training import environment, recorded

from whyidle.ledger.causes import CAUSES, CHECKPOINT_KINDS
from whyidle.ledger.directory import read_directory
from whyidle.torch_hooks.hooks.sources import is_batch

STEPS = 20


def train(forks: Forks, folder: Path, *words: str) -> Any:
    done, _ = forks.run(("loaded.py", str(folder / "files"), *words), folder / "out")
    assert done.returncode == 0, done.stderr
    [ledger] = done.ledgers
    assert ledger.faults == 0
    return ledger


def test_batches_that_the_loop_loads_are_data_and_one_checkpoint_is_a_restore(tmp_path: Path, forks: Forks) -> None:
    ledger = train(forks, tmp_path)
    loads = ledger.words["checkpoints"][CHECKPOINT_KINDS.index("load")]
    assert loads == 1
    # The recording begins in the first step. After the restore, the next batch shows again what the loop loads.
    assert ledger.marked_data == STEPS - 3
    assert ledger.cause_ns["data_read"] + ledger.cause_ns["data_cpu"] + ledger.cause_ns["data_queue"] > 0
    assert ledger.cause_ns["checkpoint_read"] > 0


def test_a_log_that_is_written_with_fsync_is_a_logger(tmp_path: Path, forks: Forks) -> None:
    ledger = train(forks, tmp_path, "logs")
    assert ledger.words["checkpoints"][CHECKPOINT_KINDS.index("save")] == 1
    assert ledger.cause_ns["logging"] > 0
    assert ledger.cause_ns["logging"] > ledger.cause_ns["checkpoint_write"] / 2


@pytest.mark.parametrize(
    ("loaded", "batch"),
    [
        (torch.ones(4, 8), True),
        (numpy.ones(4), True),
        ((torch.ones(4, 8), torch.ones(4)), True),
        ([{"image": torch.ones(3, 8, 8), "label": 3}], True),
        ({"input_ids": torch.ones(4, 8), "labels": torch.ones(4)}, True),
        ({"0.weight": torch.ones(4, 8), "0.bias": torch.ones(4)}, False),
        ({"model": {"weight": torch.ones(4)}, "optimizer": {"state": {}}}, False),
        ({"weight": torch.ones(4, 8), "step": 7}, False),
        (torch.nn.Linear(2, 2), False),
        ({}, False),
        (None, False),
    ],
)
def test_is_batch(loaded: object, batch: bool) -> None:
    assert is_batch(loaded) is batch


EARLY = """
import time, torch
model = torch.nn.Linear(8, 8)
torch.save(model.state_dict(), "weights.pt")

class Slow:
    def __init__(self, file):
        self.file = file
    def __getattr__(self, name):
        return getattr(self.file, name)
    def readinto(self, buffer):
        time.sleep(0.2)
        return self.file.readinto(buffer)

begun = time.monotonic()
with open("weights.pt", "rb") as file:
    model.load_state_dict(torch.load(Slow(file)))
print(time.monotonic() - begun)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
"""


def test_what_a_program_loads_before_its_first_sign_of_training_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(EARLY)
    words = recorded([sys.executable, "program.py"])
    done = subprocess.run(words, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=True)
    [ledger], problems = read_directory(str(tmp_path / "ledgers"))
    assert not problems
    before = dict(zip(CAUSES, ledger.words["window_cause_ns"], strict=True))
    assert before["checkpoint_read"] / 1e9 == pytest.approx(float(done.stdout), abs=0.1)
    assert sum(before.values()) == ledger.window_ns - ledger.start_ns
