"""A batch that a loop takes with torch.load is not a restore, and a log that is written with fsync is not a save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from support_forks import Forks

from whyidle.ledger.causes import CHECKPOINT_KINDS
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
