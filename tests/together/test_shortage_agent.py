"""A real rank that shares its CPU with another process: an agent exports what the rank's ledger and report say."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_agent import agent
from support_training import command, recorded, run

from whyidle.ledger.directory import read_directory
from whyidle.verdict.accounts import account

PINNED = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); os.execv(sys.argv[2], sys.argv[2:])"
COUNTERS = ("asked", "stolen", "queued")

pytestmark = pytest.mark.alone


def pinned(cpu: int, *words: str) -> list[str]:
    return [sys.executable, "-c", PINNED, str(cpu), *words]


@contextlib.contextmanager
def busy(cpu: int) -> Iterator[None]:
    """Another process that always wants this CPU."""
    process = subprocess.Popen(pinned(cpu, sys.executable, "-c", "while True: pass"))
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_the_agent_exports_the_cpu_time_that_a_real_rank_did_not_get(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    with busy(cpu):
        outcome = run(pinned(cpu, *recorded(command("blocked.py", "computes"))), tmp_path / "run")
    assert outcome.returncode == 0, outcome.stderr
    ledgers = tmp_path / "run" / "ledgers"
    [ledger], problems = read_directory(str(ledgers))
    assert not problems
    [rank] = account((ledger.owner, ledger.run), [ledger], 0).ranks
    said = {"asked": rank.cpu_asked, "stolen": rank.cpu_stolen, "queued": rank.cpu_queued}
    labels = {"owner": ledger.owner, "run": ledger.run, "rank": "0"}
    with agent(ledgers) as running:
        exported = {name: running.values(f"whyidle_rank_cpu_{name}_seconds_total", **labels) for name in COUNTERS}
    assert said["asked"] > 0
    assert said["queued"] > 0
    # What is 0 has no series.
    assert exported == {name: [pytest.approx(seconds)] if seconds else [] for name, seconds in said.items()}
