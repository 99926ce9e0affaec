"""Time outside all brackets is compute or host, unless the loop was blocked: real loops that know for how long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support_forks import Forks
from support_quiet import wait_for_quiet

from whyidle.ledger.directory import read_directory

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("name", ["sleeps", "sleeps_shortly", "computes", "logs"])
def test_blocked_time_is_what_the_loop_measured(name: str, tmp_path: Path, forks: Forks) -> None:
    wait_for_quiet()
    done, _ = forks.run(("blocked.py", name), tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    ([ledger], problems) = read_directory(str(tmp_path / "ledgers"), steps=True)
    assert not problems
    blocked = ledger.cause_ns["host_blocked"]
    assert abs(blocked - told["blocked"]) < 0.1 * told["wall"] + told["stolen"], (blocked, told)
    assert all(ns >= 0 for step in ledger.ring for ns in step.causes)
    if name == "logs":
        assert ledger.cause_ns["host"] < told["busy"] + 0.1 * told["wall"] + told["stolen"]
