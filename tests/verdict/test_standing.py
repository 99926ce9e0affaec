"""Runs that stand still in a step, and what is advised to them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support_ledgers import Spec, children

from whyidle.advisor.advice.case import case_of
from whyidle.advisor.advice.table import advise
from whyidle.ledger.directory import run_of
from whyidle.ledger.reader import Ledger, read_ledger
from whyidle.verdict.enough import NO_LIMITS
from whyidle.verdict.standing import sentences, standing_seconds

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


@pytest.mark.parametrize(("device", "hangs"), [("cuda:0", ": work on its device may hang"), ("cpu", "")])
def test_says_where_a_rank_stands_in_compute(device: str, hangs: str, tmp_path: Path) -> None:
    ledger = live(tmp_path, 60.0, "compute")
    ledger.strings.update(device=device, stuck_line="train.py:14 main")
    ledger.words["stuck_since_ns"] = (ledger.ring[-1].end_ns,)
    now_ns = ledger.phase_since_ns + 60 * 10**9
    ledger.words["heartbeat_ns"] = (now_ns,)
    said = "longer than any of its last steps took, at train.py:14 main"
    assert sentences([ledger], now_ns, ()) == [f"rank 0 has been in compute for 60.0 s, {said}{hangs}"]
    assert sentences([ledger], now_ns, {0}) == []
    assert sentences([ledger], now_ns + 60 * 10**9, ()) == []  # it is silent
    ledger.alive = False
    hung = hangs.replace("hang", "have hung")
    assert sentences([ledger], now_ns, ()) == [f"rank 0 was in compute for 60.0 s when it ended, {said}{hung}"]
    ledger.words["batches"] = (0,)  # without a loader it may have finished: `finish_sentences` says so
    assert sentences([ledger], now_ns, ()) == []


@pytest.mark.parametrize(("blocked", "said"), [(58, "blocked in its own code"), (0, "in compute")])
def test_says_whether_a_rank_that_stands_in_compute_is_blocked(blocked: int, said: str, tmp_path: Path) -> None:
    ledger = live(tmp_path, 60.0, "compute")
    now_ns = ledger.phase_since_ns + 60 * 10**9
    ledger.words |= {"stuck_since_ns": (ledger.phase_since_ns,), "heartbeat_ns": (now_ns,)}
    ledger.words |= {"open_looks": (60,), "open_blocked_looks": (blocked,), "open_cpu_ns": (10**9,)}
    [sentence] = sentences([ledger], now_ns, ())
    assert sentence.startswith(f"rank 0 has been {said} for 60.0 s, longer than any of its last steps took")


def test_a_rank_that_has_just_begun_to_compute_does_not_stand_there(tmp_path: Path) -> None:
    """Before, it waited long for the first batch of an epoch."""
    ledger = live(tmp_path, 60.0, "compute")
    ledger.words["phase_since_ns"] = (ledger.last_sign_ns - 10**9,)
    assert standing_seconds(ledger, ledger.last_sign_ns) > 0
    assert sentences([ledger], ledger.last_sign_ns, ()) == []


def test_ranks_that_stand_at_one_place_share_a_sentence(tmp_path: Path) -> None:
    ledger = live(tmp_path, 60.0, "compute")
    ledger.strings["device"] = "cuda:0"
    other = replace(ledger, words=ledger.words | {"rank": (1,)})
    now_ns = ledger.last_sign_ns
    [said] = sentences([ledger, other], now_ns, ())
    assert said.startswith("ranks 0 and 1 have been in compute for ")
    assert said.endswith("longer than any of their last steps took: work on their devices may hang")
    assert sentences([live(tmp_path / "host", 60.0)], time.monotonic_ns(), ()) == []
