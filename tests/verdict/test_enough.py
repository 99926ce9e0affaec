"""When a run is too short for a verdict: too few steps or seconds, or shares that are not known well enough."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support_ledgers import Spec, ended

from whyidle.advisor.advice.case import case_of
from whyidle.advisor.advice.table import advise
from whyidle.advisor.whatif.answer import answer
from whyidle.advisor.whatif.changes import Changes
from whyidle.advisor.whatif.trace import NoTrace
from whyidle.cli.report import render_text
from whyidle.ledger.causes import CAUSE, CAUSES
from whyidle.ledger.directory import Run, read_directory
from whyidle.ledger.reader import Ledger
from whyidle.verdict.accounts import account
from whyidle.verdict.enough import NO_LIMITS, BadLimit, Limits, TooShort, limits, too_short
from whyidle.verdict.report import build_report
from whyidle.verdict.verdict import verdict

RUN: Run = ("lab", "r1")
LIMITS = Limits()
SLOW = {"compute": 0.2, "data_read": 0.1}
"""A step of 0.3 s: a third of it is storage."""


def read(folder: Path, *specs: Spec) -> list[Ledger]:
    ended(folder, *specs)
    return read_directory(str(folder), steps=True)[0]


def short(ledgers: Sequence[Ledger], least: Limits = LIMITS) -> TooShort | None:
    return too_short(account(RUN, ledgers, time.monotonic_ns()), least)


def with_steps(ledger: Ledger, *steps: dict[str, float]) -> Ledger:
    """A ledger whose last steps had these causes, in seconds."""
    ring = []
    for step, spent in zip(ledger.ring[-len(steps) :], steps, strict=True):
        causes = [0] * len(CAUSES)
        for cause, seconds in spent.items():
            causes[CAUSE[cause]] = round(1e9 * seconds)
        ring.append(replace(step, wall_ns=sum(causes), causes=tuple(causes)))
    ledger.ring = ring
    return ledger


@pytest.mark.parametrize(
    ("steps", "step", "sentence"),
    [
        (10, {"compute": 0.02}, "too short to judge: 10 steps in 0.2 s"),
        (1, {"compute": 0.2}, "too short to judge: 1 step in 0.2 s"),
        (19, SLOW, "too short to judge: 19 steps in 5.7 s"),
        (30, {"compute": 0.1}, "too short to judge: 30 steps in 3.0 s"),
        (20, SLOW, None),
    ],
)
def test_needs_steps_and_seconds(steps: int, step: dict[str, float], sentence: str | None, tmp_path: Path) -> None:
    found = short(read(tmp_path, Spec(world_size=1, steps=steps, step=step)))
    assert (found and found.sentence) == sentence


def test_the_report_has_its_table_and_says_why_there_is_no_verdict(tmp_path: Path) -> None:
    ledgers = read(tmp_path, Spec(world_size=1, steps=10, step=SLOW))
    report: dict[str, Any] = build_report(RUN, ledgers, time.monotonic_ns(), least=LIMITS)
    assert report["verdict"] is None
    assert report["too_short"] == {
        "steps": 10,
        "seconds": pytest.approx(3.0),
        "spread": pytest.approx(0.0, abs=1e-9),
        "first_step_share": None,
        "least_steps": 20,
        "least_seconds": 5.0,
        "most_spread": 0.05,
        "sentence": "too short to judge: 10 steps in 3.0 s",
    }
    text = render_text(report, colour=False)
    assert "\nverdict  too short to judge: 10 steps in 3.0 s\n" in text
    assert "data_read   storage" in text
    judged: dict[str, Any] = build_report(RUN, ledgers, time.monotonic_ns(), least=NO_LIMITS)
    assert (judged["verdict"]["family"], judged["too_short"]) == ("storage", None)


def test_a_short_run_gets_no_advice_and_no_prediction(tmp_path: Path) -> None:
    ledgers = read(tmp_path, Spec(world_size=1, steps=15, step=SLOW))
    now = time.monotonic_ns()
    assert advise(case_of(RUN, ledgers, now, least=NO_LIMITS))
    assert advise(case_of(RUN, ledgers, now, least=LIMITS)) == []
    assert answer(RUN, ledgers, now, Changes(storage=0.5), least=NO_LIMITS)["changes"]
    with pytest.raises(NoTrace, match=r"^too short to judge: 15 steps in 4\.5 s$"):
        answer(RUN, ledgers, now, Changes(storage=0.5), least=LIMITS)


def test_a_program_that_fails_in_its_first_batch_is_too_short(tmp_path: Path) -> None:
    window = time.monotonic_ns() - 100_000_000
    [ledger] = read(tmp_path, Spec(world_size=1, failed=True, words={"window_ns": window}))
    found = short([ledger])
    assert found is not None
    assert found.sentence == "too short to judge: 0 steps in 0.1 s"


def test_a_run_without_a_first_step_is_neither(tmp_path: Path) -> None:
    report: dict[str, Any] = build_report(RUN, read(tmp_path, Spec(world_size=1)), time.monotonic_ns(), least=LIMITS)
    assert (report["verdict"], report["too_short"]) == (None, None)


def saves(every: int, of: int, seconds: float = 4.0) -> list[dict[str, float]]:
    """Steps of 0.2 s, with saves."""
    return [{"compute": 0.2, "checkpoint_write": seconds * (number % every == 0)} for number in range(1, of + 1)]


def test_rare_long_saves_are_judged_after_several_of_them(tmp_path: Path) -> None:
    [few] = read(tmp_path / "few", Spec(world_size=1, steps=60, step=SLOW))
    found = short([with_steps(few, *saves(50, 60))])
    assert found is not None
    assert found.spread is not None
    assert found.spread > 0.05
    points = f"{100 * found.spread:.0f} points"
    assert found.sentence == f"too short to judge: 60 steps in 18.0 s, and the shares still vary by {points}"
    [many] = read(tmp_path / "many", Spec(world_size=1, steps=511, step=SLOW))
    assert short([with_steps(many, *saves(50, 511))]) is None


@pytest.mark.parametrize(("epochs", "judged"), [(3, False), (4, True), (7, True), (8, True), (13, True)])
def test_waits_at_the_beginning_of_each_epoch_are_steady(epochs: int, judged: bool, tmp_path: Path) -> None:
    steps = 40 * epochs + 1  # the first one does not count
    [ledger] = read(tmp_path, Spec(world_size=1, steps=steps, step=SLOW))
    spent = [{"compute": 0.03, "data_read": 1.2 * (number % 40 == 0)} for number in range(steps)]
    assert (short([with_steps(ledger, *spent[-len(ledger.ring) :])]) is None) == judged


def test_a_long_run_is_judged_although_its_last_steps_vary(tmp_path: Path) -> None:
    """The error is that of the whole run, of which a ledger keeps the last steps."""
    [ledger] = read(tmp_path, Spec(world_size=1, steps=5000, step=SLOW))
    varied = with_steps(ledger, *saves(400, 511, 20.0))
    assert short([varied]) is None
    varied.words["steps"] = (511,)
    assert short([varied]) is not None


def test_the_first_step_alone_gives_no_verdict(tmp_path: Path) -> None:
    [ledger] = read(tmp_path, Spec(world_size=1, steps=30, step=SLOW))
    compiled = with_steps(ledger, {"host_compile": 20.0, "compute": 0.2}, *[{"compute": 0.2}] * 29)
    found = short([compiled])
    assert found is not None
    assert found.sentence == "too short to judge: 30 steps in 9.0 s, and the first step took 78 % of them"
    [other] = read(tmp_path / "other", Spec(world_size=1, steps=30, step=SLOW))
    assert short([with_steps(other, {"data_read": 2.0, "compute": 0.2}, *[SLOW] * 29)]) is None


def test_ledgers_without_single_steps_are_judged_by_steps_and_seconds(tmp_path: Path) -> None:
    ended(tmp_path, Spec(world_size=1, steps=30, step=SLOW))
    ledgers = read_directory(str(tmp_path))[0]
    assert short(ledgers) is None
    assert short(ledgers, Limits(31)) is not None


def test_many_ranks_are_judged_by_some_of_them(tmp_path: Path) -> None:
    ledgers = read(tmp_path, *(Spec(rank=rank, world_size=70, steps=30, step=SLOW) for rank in range(70)))
    assert short(ledgers) is None


def test_a_rank_that_others_wait_for_is_named_at_once(tmp_path: Path) -> None:
    """A wait that does not end needs no statistics."""
    waits = Spec(rank=0, steps=2, step={"compute": 0.1}, phase="collective", idle=60.0, collectives=3, failed=True)
    missing = Spec(rank=1, steps=2, step={"compute": 0.1}, phase="host", idle=60.0, collectives=2, failed=True)
    ledgers = read(tmp_path, waits, missing)
    for ledger in ledgers:
        ledger.alive = True
    whole = account(RUN, ledgers, time.monotonic_ns())
    assert whole.missing
    assert too_short(whole, LIMITS) is None


def test_time_without_a_cause_leads_only_alone(tmp_path: Path) -> None:
    step = {"compute": 0.1, "unattributed": 0.1}
    both = account(RUN, read(tmp_path / "both", Spec(world_size=1, steps=30, step={**step, "host": 0.05})), 0)
    alone = account(RUN, read(tmp_path / "alone", Spec(world_size=1, steps=30, step={**step, "host": 0.01})), 0)
    assert [(verdict(one, LIMITS) or {}).get("family") for one in (both, alone)] == ["host", "unattributed"]


def test_limits_come_from_the_environment() -> None:
    assert limits({}) == LIMITS
    given = {"WHYIDLE_LEAST_STEPS": "3", "WHYIDLE_LEAST_SECONDS": "0.5", "WHYIDLE_MOST_SPREAD": "inf"}
    assert limits(given) == Limits(3, 0.5, math.inf)


@pytest.mark.parametrize("text", ["many", "-1", "nan", "2.5", "inf"])
def test_rejects_limits_that_are_not_numbers(text: str) -> None:
    with pytest.raises(BadLimit, match="WHYIDLE_LEAST_STEPS must be a whole number from 0"):
        limits({"WHYIDLE_LEAST_STEPS": text})
