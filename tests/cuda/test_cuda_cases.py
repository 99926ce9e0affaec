"""torch's CUDA build on the stand-in: what `whyidle report` says of each rank is what the log of its device says."""

from __future__ import annotations

from pathlib import Path

import pytest
from cudastandin.cases import CASES, Case
from cudastandin.checks import wrong
from cudastandin.lab import losses, run
from support_forks import Forks

pytestmark = pytest.mark.alone


def _params() -> list[object]:
    marks = {
        name: [pytest.mark.xfail(reason=case.wrong, strict=False)] if case.wrong else [] for name, case in CASES.items()
    }
    return [pytest.param(case, id=name, marks=marks[name]) for name, case in CASES.items()]


@pytest.mark.parametrize("case", _params())
def test_the_report_agrees_with_the_log_of_the_device(cuda_forks: Forks, case: Case, tmp_path: Path) -> None:
    outcome = run(cuda_forks, case, tmp_path)
    assert wrong(outcome) == [], outcome.lines()


@pytest.mark.parametrize(
    "case", [case for name, case in CASES.items() if name.endswith("-none")], ids=lambda case: case.name
)
def test_losses_are_those_without_whyidle(cuda_forks: Forks, case: Case, tmp_path: Path) -> None:
    with_whyidle = [rank.told["losses"] for rank in run(cuda_forks, case, tmp_path / "with").ranks]
    assert str(losses(cuda_forks, case, tmp_path / "without")) == str(with_whyidle)  # NaN is equal to itself here
