"""Public reports of slow or broken trainings, run again: what whyidle says has to be true, and its advice has to help.

Each has a script that shows its pattern and knows the truth by its own clock (scripts/). `run.py` prints the table.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from accuracy_page import KEPT, TEMPLATE, insert, kept
from report_judge import judge
from report_lab import SCRIPTS, missing, observe
from report_page import table
from report_rows import Report
from report_table import REPORTS
from support_long import long_unless
from support_quiet import wait_for_quiet

USUAL = {"save_by_one_rank"}


KNOWN = {
    "async_save_gil": "a run of 12 s has four to eight looks, which may be too few to say that Python's lock is held",
}
"""Report -> what is sometimes wrong and not mended yet."""


@pytest.mark.alone
@pytest.mark.parametrize(
    "report", long_unless([one for one in REPORTS if one.name in USUAL], REPORTS), ids=lambda report: report.name
)
def test_says_what_is_true_about_a_public_report(report: Report, tmp_path: Path) -> None:
    if lacks := missing(report):
        pytest.skip(lacks)
    wait_for_quiet()
    found = judge(report, observe(report, tmp_path))
    if found.wrong and report.name in KNOWN:
        pytest.xfail(KNOWN[report.name])
    assert not found.wrong, found.summary


def test_each_report_has_one_script_and_each_script_one_report() -> None:
    scripts = {path.stem for path in SCRIPTS.glob("*.py")} - {"truth"}
    assert sorted(report.name for report in REPORTS) == sorted(scripts)


def test_the_page_has_a_row_for_each_report_also_before_it_has_run() -> None:
    text = table(REPORTS, {})
    assert all(report.pattern in text for report in REPORTS)
    assert text.count("not run") == len(REPORTS)


def test_a_new_table_replaces_the_old_one_and_nothing_else() -> None:
    page = "before\n<!-- reports: table -->\nold\n<!-- reports: end -->\nafter\n"
    assert kept(page, "reports") == "old\n"
    assert insert(page, "reports", "new\n") == page.replace("old", "new")


def test_the_accuracy_page_keeps_the_table_when_its_other_tables_are_written_again() -> None:
    assert [kept(TEMPLATE.read_text(), name) for name in KEPT] == [f"${name}" for name in KEPT]
