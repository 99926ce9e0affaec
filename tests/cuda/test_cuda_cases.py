"""torch's CUDA build on the stand-in: what `whyidle report` says of each rank is what the log of its device says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from cudastandin.cases import CASES, Case
from cudastandin.checks import wrong
from cudastandin.lab import Outcome, losses, run
from support_forks import Forks

pytestmark = pytest.mark.alone

LOOPS = {case.plan.loop: name for name, case in CASES.items() if case.plan.loop != "plain"}
WITHOUT_FAULT = [*(name for name in CASES if name.endswith("-none")), *LOOPS.values()]
"""Each shape, and each loop once."""
Run = Callable[[str], Outcome]


@pytest.fixture(scope="module")
def ran(cuda_forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a case once."""

    @functools.cache
    def once(name: str) -> Outcome:
        return run(cuda_forks, CASES[name], tmp_path_factory.mktemp(name))

    return once


def _param(case: Case) -> object:
    marks = [pytest.mark.xfail(reason=case.wrong, strict=False)] if case.wrong else []
    return pytest.param(case.name, id=case.name, marks=marks)


@pytest.mark.parametrize("name", [_param(case) for case in CASES.values()])
def test_the_report_agrees_with_the_log_of_the_device(ran: Run, name: str) -> None:
    outcome = ran(name)
    assert wrong(outcome) == [], outcome.lines()


@pytest.mark.parametrize("name", WITHOUT_FAULT)
def test_losses_are_those_without_whyidle(cuda_forks: Forks, ran: Run, name: str, tmp_path: Path) -> None:
    recorded = [rank.told["losses"] for rank in ran(name).ranks]
    assert str(losses(cuda_forks, CASES[name], tmp_path)) == str(recorded)  # as text, because NaN differs from itself
