"""Runs public reports of slow trainings again, and says what whyidle gets right and wrong.

    .venv/bin/python tests/reports/run.py [NAME …]            runs these reports, or all, and prints a table
    .venv/bin/python tests/reports/run.py --json [NAME …]     the same as JSON
    .venv/bin/python tests/reports/run.py --markdown          runs nothing, and prints the table of docs/accuracy.md
    .venv/bin/python tests/reports/run.py --page              runs nothing, and writes the table into docs/accuracy.md

Each result is a file below .venv/reports. All reports take ten minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from accuracy_page import insert
from report_judge import Judged, judge
from report_lab import CannotRun, observe
from report_page import table
from report_rows import Report
from report_table import REPORTS
from support_quiet import Stolen

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = ROOT / ".venv" / "reports", ROOT / "docs" / "accuracy.md"


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def run(reports: Sequence[Report], results: Path, keep: Path | None) -> Iterator[Judged]:
    for number, report in enumerate(reports, 1):
        label = f"[{number} of {len(reports)}] {report.name}"
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) if keep is None else keep / report.name
            try:
                with Stolen() as stolen:
                    seen = observe(report, folder, lambda text, label=label: progress(f"{label}: {text}"))
            except CannotRun as error:
                progress("")
                print(f"{report.name}: not run: {error}", file=sys.stderr)
                continue
            if keep is not None:
                _keep(folder, seen.text, seen.asked)
        progress("")
        found = judge(report, seen)
        facts = {"date": datetime.now(timezone.utc).strftime("%Y-%m-%d"), "stolen": stolen.share}
        results.mkdir(parents=True, exist_ok=True)
        (results / f"{report.name}.json").write_text(json.dumps(found.entry() | facts, indent=2) + "\n")
        yield found
        if not sys.stderr.isatty():
            print(f"{label}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def _keep(folder: Path, text: str, asked: Sequence[str]) -> None:
    (folder / "report.txt").write_text(text)
    for number, each in enumerate(asked):
        (folder / f"asked-{number}.txt").write_text(each)


def line(found: Judged) -> str:
    truth = " or ".join(
        f"{family} {share:.1%}" if share is not None else family for family, share in found.truth.items()
    )
    told = f"{found.family} {found.share:.1%}" if found.share is not None else found.family or "no verdict"
    head = f"{'WRONG' if found.wrong else 'right'}  {found.name:28} truth {truth:24} whyidle {told}"
    return "\n".join([head, *(f"         {sentence}" for sentence in found.wrong)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--markdown", action="store_true", help="run nothing, and print the table of the page")
    parser.add_argument("--page", action="store_true", help="run nothing, and write the table into docs/accuracy.md")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep output, ledgers and reports in this folder")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="default: %(default)s")
    args = parser.parse_args()
    known = {report.name: report for report in REPORTS}
    if unknown := [name for name in args.reports if name not in known]:
        parser.error(f"there is no report {unknown[0]}. Reports: {', '.join(known)}")
    if args.markdown or args.page:
        found = {path.stem: json.loads(path.read_text()) for path in args.results.glob("*.json")}
        text = table(REPORTS, found)
        if args.page:
            PAGE.write_text(insert(PAGE.read_text(), "reports", text))
        else:
            print(text, end="")
        return 0
    rows = []
    for one in run([known[name] for name in args.reports] or REPORTS, args.results, args.keep):
        rows.append(one)
        if not args.json:
            print(line(one), flush=True)
    if args.json:
        print(json.dumps([one.entry() for one in rows], indent=2))
    return 1 if any(one.wrong for one in rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
