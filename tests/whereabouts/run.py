"""Runs jobs on slow mounts and links, and says whether whyidle names these, and nothing else.

    .venv/bin/python tests/whereabouts/run.py [NAME …]         runs these cases, or all, and prints a table
    .venv/bin/python tests/whereabouts/run.py --json [NAME …]  the same as JSON
    .venv/bin/python tests/whereabouts/run.py --markdown       runs nothing, and prints the table of docs/accuracy.md
    .venv/bin/python tests/whereabouts/run.py --page           runs nothing, and writes the table into docs/accuracy.md

Each result is a file below .venv/whereabouts. All cases take twelve minutes, and need root.
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
from support_quiet import Stolen
from where_judge import Judged, judge
from where_lab import CannotRun, observe
from where_page import line, table
from where_rows import Case
from where_table import CASES

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = ROOT / ".venv" / "whereabouts", ROOT / "docs" / "accuracy.md"


def run(cases: Sequence[Case], results: Path, keep: Path | None) -> Iterator[Judged]:
    results.mkdir(parents=True, exist_ok=True)
    for number, case in enumerate(cases, 1):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="whereabouts-") as scratch:
            folder = Path(scratch) if keep is None else keep / case.name
            try:
                with Stolen() as stolen:
                    seen = observe(case, folder)
            except CannotRun as error:
                print(f"not run  {case.name}: {error}", file=sys.stderr)
                continue
            if keep is not None:
                (folder / "report.txt").write_text(seen.text)
        found = judge(case, seen)
        facts = {"date": datetime.now(timezone.utc).strftime("%Y-%m-%d"), "stolen": stolen.share}
        (results / f"{case.name}.json").write_text(json.dumps(found.entry() | facts, indent=2) + "\n")
        print(f"[{number} of {len(cases)}] {case.name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        yield found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--markdown", action="store_true", help="run nothing, and print the table of the page")
    parser.add_argument("--page", action="store_true", help="run nothing, and write the table into docs/accuracy.md")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep output, ledgers and reports in this folder")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="default: %(default)s")
    args = parser.parse_args()
    known = {case.name: case for case in CASES}
    if unknown := [name for name in args.cases if name not in known]:
        parser.error(f"there is no case {unknown[0]}. Cases: {', '.join(known)}")
    if args.markdown or args.page:
        found = {path.stem: json.loads(path.read_text()) for path in args.results.glob("*.json")}
        text = table(CASES, found)
        if args.page:
            PAGE.write_text(insert(PAGE.read_text(), "whereabouts", text))
        else:
            print(text, end="")
        return 0
    rows = []
    for one in run([known[name] for name in args.cases] or CASES, args.results, args.keep):
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
