"""Runs jobs on slow mounts and links, and says whether whyidle names these, and nothing else.

    .venv/bin/python tests/whereabouts/run.py [NAME …]         runs these cases, or all, and prints a table
    .venv/bin/python tests/whereabouts/run.py --json [NAME …]  the same as JSON
    .venv/bin/python tests/whereabouts/run.py --markdown       runs nothing, and prints the table of docs/accuracy.md
    .venv/bin/python tests/whereabouts/run.py --page           runs nothing, and writes the table into docs/accuracy.md

Each result is a file below .venv/whereabouts. All cases take twelve minutes, and need root.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from support_suite_of_cases import Suite, main
from where_judge import judge
from where_lab import Observed, observe
from where_page import line, table
from where_rows import Case
from where_table import CASES


def _observe(case: Case, folder: Path, _say: Callable[[str], None]) -> Observed:
    return observe(case, folder)


def _keep(folder: Path, seen: Observed) -> None:
    (folder / "report.txt").write_text(seen.text)


if __name__ == "__main__":
    sys.exit(main(Suite("whereabouts", CASES, _observe, judge, _keep, line, table), __doc__))
