"""What works beside a training costs what the job's own clock says, and nothing is found where nothing works."""

from __future__ import annotations

from pathlib import Path

import pytest
from background_judge import cost, judge
from background_lab import observe
from background_rows import CASES, Case
from run import table
from support_long import long_unless
from support_quiet import wait_for_quiet
from support_suite_of_cases import CannotRun

TESTED = ("lock", "save", "child", "neighbour", "disk", "link", "healthy_9")
"""Each takes a minute. The page has more: what differs little from these, and what may cost too little to be named."""


@pytest.mark.alone
@pytest.mark.parametrize(
    "case", long_unless((), [case for case in CASES if case.name in TESTED]), ids=lambda case: case.name
)
def test_says_what_background_work_costs(case: Case, tmp_path: Path) -> None:
    wait_for_quiet()
    try:
        seen = observe(case, tmp_path / "run")
    except CannotRun as error:
        pytest.skip(str(error))
    found = judge(case, seen)
    assert not found.wrong, f"{found}\n{seen.text}"


def test_the_truth_is_what_steps_beside_the_work_take_longer_than_the_others() -> None:
    steps = [(0.0, 1.0), (1.0, 2.0), (2.0, 4.0), (4.0, 6.0), (6.0, 7.0), (7.0, 8.0)]
    assert cost(steps, [(2.5, 5.9)]) == (2 / 8, 2 / 4)
    assert cost(steps, []) == (0.0, 0.0)


def test_the_page_has_a_row_for_each_case_also_before_it_has_run() -> None:
    text = table(CASES, {})
    assert all(case.what in text for case in CASES)
    assert text.count("not run") == len(CASES)
