"""Runs that stand still in a step, and what is advised to them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support_ledgers import Spec, children

from whyidle.advisor.advice.case import case_of
from whyidle.advisor.advice.table import advise
from whyidle.ledger.directory import run_of
from whyidle.ledger.reader import Ledger, read_ledger
from whyidle.verdict.enough import NO_LIMITS
from whyidle.verdict.standing import standing_seconds

STEP: dict[str, Any] = {"compute": 0.05, "host_blocked": 0.05}


def live(folder: Path, idle: float, phase: str = "host") -> Ledger:
    words = {"batches": 99}
    spec = Spec(steps=99, step=STEP, words=words, world_size=1, phase=phase, idle=idle)
    with children(folder, spec) as [child]:
        ledger = read_ledger(child.path, steps=True)
    ledger.words["heartbeat_ns"] = (time.monotonic_ns(),)
    return ledger


@pytest.mark.parametrize(
    ("idle", "phase", "stands"), [(60.0, "host", True), (0.05, "host", False), (60.0, "checkpoint", False)]
)
def test_a_step_that_takes_much_longer_than_usual_stands_still(
    idle: float, phase: str, stands: bool, tmp_path: Path
) -> None:
    ledger = live(tmp_path, idle, phase)
    assert standing_seconds(ledger, time.monotonic_ns()) == pytest.approx((idle - 0.1) * stands, abs=1.0)


def test_a_step_as_long_as_one_before_goes_on(tmp_path: Path) -> None:
    """An evaluation at each epoch, for example."""
    ledger = live(tmp_path, 60.0)
    ledger.ring[50].wall_ns = 70_000_000_000
    assert standing_seconds(ledger, time.monotonic_ns()) == 0.0


@pytest.mark.parametrize(("idle", "advised"), [(0.05, True), (60.0, False)])
def test_a_hang_is_not_slow_code(idle: float, advised: bool, tmp_path: Path) -> None:
    ledger = live(tmp_path, idle)
    found = advise(case_of(run_of(ledger), [ledger], time.monotonic_ns(), least=NO_LIMITS))
    assert ("host.blocked" in {one.id for one in found}) == advised
