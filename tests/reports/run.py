"""Runs public reports of slow trainings again, and says what whyidle gets right and wrong.

    .venv/bin/python tests/reports/run.py [NAME …]            runs these reports, or all, and prints a table
    .venv/bin/python tests/reports/run.py --json [NAME …]     the same as JSON
    .venv/bin/python tests/reports/run.py --markdown          runs nothing, and prints the table of docs/accuracy.md
    .venv/bin/python tests/reports/run.py --page              runs nothing, and writes the table into docs/accuracy.md

Each result is a file below .venv/reports. All reports take ten minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from report_judge import Judged, judge
from report_lab import Observed, observe
from report_page import table
from report_table import REPORTS
from support_suite_of_cases import Suite, main


def _keep(folder: Path, seen: Observed) -> None:
    (folder / "report.txt").write_text(seen.text)
    for number, each in enumerate(seen.asked):
        (folder / f"asked-{number}.txt").write_text(each)


def line(found: Judged) -> str:
    truth = " or ".join(
        f"{family} {share:.1%}" if share is not None else family for family, share in found.truth.items()
    )
    told = f"{found.family} {found.share:.1%}" if found.share is not None else found.family or "no verdict"
    head = f"{'WRONG' if found.wrong else 'right'}  {found.name:28} truth {truth:24} whyidle {told}"
    return "\n".join([head, *(f"         {sentence}" for sentence in found.wrong)])


if __name__ == "__main__":
    sys.exit(main(Suite("reports", REPORTS, observe, judge, _keep, line, table), __doc__))
