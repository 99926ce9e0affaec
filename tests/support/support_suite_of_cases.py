"""Runs cases one after the other, and writes what was found: the programs of tests/reports and tests/whereabouts."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from support_quiet import Stolen
from support_sites import WHYIDLE, clean_env

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "accuracy.md"


class CannotRun(Exception):
    """This machine cannot run a case."""


def ask_report(ledgers: Path, *options: str, seconds: float) -> str:
    """What `whyidle report` prints about these ledgers."""
    words = [*WHYIDLE, "report", f"--dir={ledgers}", *options]
    told = subprocess.run(words, env=clean_env(), capture_output=True, text=True, check=False, timeout=seconds)
    if told.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {told.stderr.strip()}")
    return told.stdout


@dataclass(frozen=True)
class Suite:
    name: str
    """Of the folder of results below .venv, and of the table in docs/accuracy.md."""
    cases: Sequence[Any]
    """Each has a ``name``."""
    observe: Callable[[Any, Path, Callable[[str], None]], Any]
    """Runs a case in a folder, and tells what it is doing. Raises CannotRun."""
    judge: Callable[[Any, Any], Any]
    """Case, what was observed -> what was found, with ``name``, ``wrong`` and ``entry()``."""
    keep: Callable[[Path, Any], None]
    """Writes what was observed into a folder."""
    line: Callable[[Any], str]
    table: Callable[[Sequence[Any], Mapping[str, Mapping[str, Any]]], str]

    def run(self, cases: Sequence[Any], results: Path, keep: Path | None) -> Iterator[Any]:
        results.mkdir(parents=True, exist_ok=True)
        for number, case in enumerate(cases, 1):
            label = f"[{number} of {len(cases)}] {case.name}"
            begun = time.monotonic()
            with tempfile.TemporaryDirectory(prefix=f"{self.name}-") as scratch:
                folder = Path(scratch) if keep is None else keep / case.name
                try:
                    with Stolen() as stolen:
                        seen = self.observe(case, folder, lambda text, label=label: _progress(f"{label}: {text}"))
                except CannotRun as error:
                    _progress("")
                    print(f"{case.name}: not run: {error}", file=sys.stderr)
                    continue
                if keep is not None:
                    self.keep(folder, seen)
            _progress("")
            found = self.judge(case, seen)
            facts = {"date": datetime.now(timezone.utc).strftime("%Y-%m-%d"), "stolen": stolen.share}
            (results / f"{case.name}.json").write_text(json.dumps(found.entry() | facts, indent=2) + "\n")
            yield found
            if not sys.stderr.isatty():
                print(f"{label}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def main(suite: Suite, description: str | None) -> int:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--markdown", action="store_true", help="run nothing, and print the table of the page")
    parser.add_argument("--page", action="store_true", help="run nothing, and write the table into docs/accuracy.md")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep output, ledgers and reports in this folder")
    results = ROOT / ".venv" / suite.name
    parser.add_argument("--results", type=Path, default=results, metavar="DIR", help="default: %(default)s")
    args = parser.parse_args()
    known = {case.name: case for case in suite.cases}
    if unknown := [name for name in args.cases if name not in known]:
        parser.error(f"{unknown[0]} is not known. There are {', '.join(known)}")
    if args.markdown or args.page:
        text = suite.table(
            suite.cases, {path.stem: json.loads(path.read_text()) for path in args.results.glob("*.json")}
        )
        if args.page:
            sys.path.insert(0, str(ROOT / "benchmarks"))
            from accuracy_page import insert

            PAGE.write_text(insert(PAGE.read_text(), suite.name, text))
        else:
            print(text, end="")
        return 0
    rows = []
    try:
        for one in suite.run([known[name] for name in args.cases] or suite.cases, args.results, args.keep):
            rows.append(one)
            if not args.json:
                print(suite.line(one), flush=True)
    except KeyboardInterrupt:
        return 130
    if args.json:
        print(json.dumps([one.entry() for one in rows], indent=2))
    return 1 if any(one.wrong for one in rows) else 0


def page_table(
    columns: Sequence[str],
    cases: Sequence[Any],
    results: Mapping[str, Mapping[str, Any]],
    row: Callable[[Any, Mapping[str, Any] | None], list[str]],
) -> str:
    """A table with a row for each case. ``results``: name -> what was found, with its date."""
    found = [results[case.name] for case in cases if case.name in results]
    right = sum(not each["wrong"] for each in found)
    dates = sorted({each["date"] for each in found})
    head = f"Run on {' and '.join(dates)}: {right} of {len(found)} are right.\n\n" if found else ""
    lines = [columns, ["---"] * len(columns), *(row(case, results.get(case.name)) for case in cases)]
    return head + "".join(f"| {' | '.join(line)} |\n" for line in lines)
