"""Asynchronous saves from a separate process: it is not a rank, and a wait for it is a wait for a checkpoint."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support_training import command, environment, meeting, recorded

from whyidle.ledger.directory import read_directory


def test_the_saving_process_is_not_a_second_rank(tmp_path: Path) -> None:
    done = subprocess.run(
        recorded(command("saves_apart.py")),
        env=environment(tmp_path, **meeting(1), RANK="0", LOCAL_RANK="0"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    waited = float(done.stdout.split("waited")[1].split()[0])
    ledgers, problems = read_directory(str(tmp_path / "ledgers"))
    assert not problems
    (ledger,) = ledgers
    assert (ledger.words["checkpoints"], ledger.checkpoint_step) == ((1, 0), 4)
    assert ledger.cause_ns["checkpoint_write"] > 0.9e9 * waited
