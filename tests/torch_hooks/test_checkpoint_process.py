"""Asynchronous saves from a separate process: it is not a rank, and a wait for it is a wait for a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from support_forks import Forks
from support_training import Outcome, command, meeting, recorded, run


def started(tmp_path: Path, forks: Forks, imported_first: bool) -> Outcome:
    script, env = "saves_apart.py", {**meeting(1), "RANK": "0", "LOCAL_RANK": "0"}
    if imported_first:
        return forks.run((script,), tmp_path, env=env)[0]
    return run(recorded(command(script)), tmp_path, **env)


@pytest.mark.parametrize(
    "imported_first",
    [True, pytest.param(False, marks=pytest.mark.long)],
    ids=["attached after the import", "attached before it"],
)
def test_the_saving_process_is_not_a_second_rank(imported_first: bool, forks: Forks, tmp_path: Path) -> None:
    done = started(tmp_path, forks, imported_first)
    assert done.returncode == 0, done.stderr
    waited = float(done.stdout.split("waited")[1].split()[0])
    (ledger,) = done.ledgers
    assert (ledger.words["checkpoints"], ledger.checkpoint_step) == ((1, 0), 4)
    assert ledger.cause_ns["checkpoint_write"] > 0.9e9 * waited
