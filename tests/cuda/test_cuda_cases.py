"""torch's CUDA build on the stand-in: what `whyidle report` says of each rank is what the log of its device says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cudastandin.cases import CASES, ERROR, READ_MS, Case
from cudastandin.checks import waits_are_where_the_device_waited, wrong
from cudastandin.lab import Outcome, losses, run
from cudastandin.plan import LATE, Plan
from support_forks import Forks

pytestmark = pytest.mark.alone

LOOPS = {case.plan.loop: name for name, case in CASES.items() if case.plan.loop != "plain"}
WITHOUT_FAULT = [*(name for name in CASES if name.endswith("-none")), *LOOPS.values()]
"""Each shape, and each loop once."""
LONG = [name for number, name in enumerate(CASES) if number % 3]
"""Every third case is usual: there are seven faults, so that all shapes and all faults are among them."""
MOVED = "fsdp2-slow-rank"
Run = Callable[[str], Outcome]


@pytest.fixture(scope="module")
def ran(cuda_forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a case once."""

    @functools.cache
    def once(name: str) -> Outcome:
        return run(cuda_forks, CASES[name], tmp_path_factory.mktemp(name))

    return once


def _param(name: str) -> object:
    return pytest.param(name, id=name, marks=[pytest.mark.long] * (name in LONG))


@pytest.mark.parametrize("name", [_param(name) for name in CASES])
def test_the_report_agrees_with_the_log_of_the_device(ran: Run, name: str) -> None:
    outcome = ran(name)
    assert wrong(outcome) == [], outcome.lines()


@pytest.mark.parametrize("ms", [-1, 1])
def test_a_bracket_that_is_moved_by_a_millisecond_is_noticed(ran: Run, ms: int) -> None:
    outcome = ran(MOVED)
    assert list(waits_are_where_the_device_waited(outcome)) == []
    waiting = outcome.ranks[1 - LATE]
    moved = [(start + ms * 1_000_000, end + ms * 1_000_000) for start, end in waiting.brackets]
    [said] = waits_are_where_the_device_waited(replace(outcome, ranks=[replace(waiting, brackets=moved)]))
    assert said.startswith(f"rank {1 - LATE}: "), said


def test_a_loop_whose_device_waits_for_its_host_is_not_compute(cuda_forks: Forks, tmp_path: Path) -> None:
    """Looks know little of a short run, and only estimate where the host is hardly ahead of its device."""
    short = CASES["single-launches"]
    case = replace(short, plan=replace(short.plan, steps=36 * short.plan.steps))
    outcome = run(cuda_forks, case, tmp_path)
    (rank,) = outcome.ranks
    assert outcome.verdict["family"] == "host", outcome.lines()
    assert outcome.verdict["summary"].startswith("the GPU runs out of work"), outcome.lines()
    assert abs(rank.errors["idle"]) < 0.5, outcome.lines()
    assert not rank.captured


def test_a_wait_of_another_stream_that_blocks_the_host_is_a_wait(cuda_forks: Forks, tmp_path: Path) -> None:
    case = Case("waits-beside", Plan("ddp", "waits_beside", read_ms=READ_MS), 2)
    outcome = run(cuda_forks, case, tmp_path)
    for rank in outcome.ranks:
        beside = sum(end - start for start, end in rank.told["beside"]) / 1e9
        waited = rank.ours["waits"] - rank.device["waits"]
        assert abs(waited - beside) < ERROR * rank.wall, (beside, outcome.lines())
    assert (outcome.verdict["family"], outcome.late) == ("straggler", [LATE]), outcome.lines()


@pytest.mark.parametrize("name", [_param(name) for name in WITHOUT_FAULT])
def test_losses_are_those_without_whyidle(cuda_forks: Forks, ran: Run, name: str, tmp_path: Path) -> None:
    recorded = [rank.told["losses"] for rank in ran(name).ranks]
    assert str(losses(cuda_forks, CASES[name], tmp_path)) == str(recorded)  # as text, because NaN differs from itself
