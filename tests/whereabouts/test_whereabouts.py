"""Jobs on slow mounts and links: a verdict has to name these, with their rates, and nothing else; advice has to help.

Each case knows the truth by its job's own clock (scripts/). `run.py` prints the table.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support_long import long_unless
from support_quiet import wait_for_quiet
from support_suite_of_cases import CannotRun
from where_judge import judge
from where_lab import SCRIPTS, observe
from where_page import table
from where_rows import Case
from where_table import CASES


@pytest.mark.alone
@pytest.mark.parametrize(
    "case",
    long_unless([case for case in CASES if case.usual], [case for case in CASES if case.tested]),
    ids=lambda case: case.name,
)
def test_names_what_is_slow(case: Case) -> None:
    wait_for_quiet()
    with TemporaryDirectory(prefix="whereabouts-") as scratch:  # others may enter it, unlike tmp_path
        try:
            seen = observe(case, Path(scratch))
        except CannotRun as error:
            pytest.skip(str(error))
    found = judge(case, seen)
    assert not found.wrong, f"{found.summary}\n{seen.text}"


def test_each_job_has_a_case() -> None:
    scripts = {path.name for path in SCRIPTS.glob("*.py")} - {"where_truth.py"}
    assert {case.job[0] for case in CASES} == scripts


def test_the_page_has_a_row_for_each_case_also_before_it_has_run() -> None:
    text = table(CASES, {})
    assert all(case.fault in text for case in CASES)
    assert text.count("not run") == len(CASES)
