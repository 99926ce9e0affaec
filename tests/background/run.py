"""Lets something work beside a training, and compares what whyidle says that it costs with the job's own clock.

    .venv/bin/python tests/background/run.py [NAME …]            runs these cases, or all, and prints a table
    .venv/bin/python tests/background/run.py --json [NAME …]     the same as JSON
    .venv/bin/python tests/background/run.py --markdown          runs nothing, and prints the table of docs/accuracy.md
    .venv/bin/python tests/background/run.py --page              runs nothing, and writes it into docs/accuracy.md

Each result is a file below .venv/background. All cases take fifteen minutes. Disks and links need root.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from background_judge import Judged, judge
from background_lab import Observed, observe
from background_rows import CASES, Case
from support_suite_of_cases import Suite, main, page_table

COLUMNS = ("beside the loop", "its cost, by the job's clock", "whyidle", "difference, points", "what it names", "right")


def keep(folder: Path, seen: Observed) -> None:
    (folder / "report.txt").write_text(seen.text)


def line(found: Judged) -> str:
    head = (
        f"{'WRONG' if found.wrong else 'right'}  {found.name:20} truth {_of(found.truth, found.slower)}"
        f"   whyidle {_of(found.told, found.told_slower)}   step {found.step_ms:.0f} ms   {found.what}"
    )
    return "\n".join([head, *(f"         {sentence}" for sentence in found.wrong)])


def _of(share: float, slower: float) -> str:
    return f"{share:6.1%} ({slower:.0%} of the steps)"


def table(cases: Sequence[Case], results: Mapping[str, Mapping[str, Any]]) -> str:
    return page_table(COLUMNS, cases, results, _row)


def _row(case: Case, found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return [case.what, "not run", "", "", "", ""]
    points = f"{100 * (found['told'] - found['truth']):+.1f}" if case.kinds else "–"
    told = f"{found['told']:.1%}" if found["told"] else "nothing"
    what = f"`{found['what']}`" if found["what"] else "–"
    return [case.what, f"{found['truth']:.1%}", told, points, what, "no" if found["wrong"] else "yes"]


if __name__ == "__main__":
    sys.exit(main(Suite("background", CASES, observe, judge, keep, line, table), __doc__))
