"""Every job with every fault on every device: what whyidle says beside the truth. Writes docs/accuracy.md.

    make accuracy                                        runs what has no result yet, and writes the page
    .venv/bin/python benchmarks/accuracy.py --only TEXT  runs only cells such as cpu-gpipe-slow-link, without the page
    .venv/bin/python benchmarks/accuracy.py --page       writes the page from the results that exist

Each result is a file below .venv/accuracy, so a run that was interrupted continues. A cell that could not run is tried
again. These are not tests: nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from accuracy_cells import CELLS, Cell, Finding, Result, read
from accuracy_page import page

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / ".venv" / "accuracy", ROOT / "docs" / "accuracy.md"


def todo(cells: Sequence[Cell], known: dict[Cell, Result], fresh: bool) -> list[Cell]:
    """The cells that have no finding yet; with ``fresh``, all of them."""
    return [cell for cell in cells if fresh or cell not in known or known[cell].finding is None]


def commit() -> str:
    """The last commit that changed more than pages, with a mark if there are changes since then."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words, "--", ".", ":!*.md"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("log", "-1", "--format=%h") or "unknown") + ("+" if changed else "")


def measured(cells: Sequence[Cell]) -> Iterator[Result]:
    """Runs cells, device by device. A device that the machine cannot have costs only its own cells."""
    # They need torch and the labs, which reading results does not.
    from accuracy_devices import BENCHES, CannotRun, cores
    from support_quiet import Stolen

    at, machine = commit(), cores()
    for device, group in itertools.groupby(cells, key=lambda cell: cell.device):
        with ExitStack() as stack:
            lacks, measure = "", None
            try:
                measure = stack.enter_context(BENCHES[device]())
            except CannotRun as error:
                lacks = str(error)
            for cell in group:
                result = Result(cell, datetime.now(timezone.utc).strftime("%Y-%m-%d"), at, machine, reason=lacks)
                with Stolen() as stolen:
                    finding, reason = _try(measure, cell) if measure else (None, lacks)
                yield replace(result, stolen=stolen.share, finding=finding, reason=reason)


def _try(measure: Callable[[Cell], Finding], cell: Cell) -> tuple[Finding | None, str]:
    """A finding, or why there is none."""
    print(f"{cell.name} …", end=" ", file=sys.stderr, flush=True)
    try:
        return measure(cell), ""
    except Exception as error:  # whatever a run ends with, the other cells run
        return None, (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]


def progress(result: Result, number: int, whole: int, begun: float) -> str:
    left = (time.monotonic() - begun) / number * (whole - number) / 60
    finding = result.finding
    said = result.reason if finding is None else "; ".join(finding.wrong) or finding.told
    return f"{said} [{number} of {whole}, {left:.0f} min left]"


def run(cells: Sequence[Cell], results: Path) -> None:
    begun = time.monotonic()
    for number, result in enumerate(measured(cells), 1):
        result.write(results)
        print(progress(result, number, len(cells), begun), file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="parts of names of cells")
    parser.add_argument("--fresh", action="store_true", help="also run cells that have a result")
    parser.add_argument("--page", action="store_true", help="run nothing, and write the page")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="default: %(default)s")
    args = parser.parse_args()
    chosen = [cell for cell in CELLS if any(text in cell.name for text in args.only or [""])]
    if not chosen:
        parser.error(f"no cell has {' or '.join(args.only)} in its name, such as {CELLS[0].name}")
    if args.page and not read(args.results):
        parser.error(f"{args.results} has no results: make accuracy runs the cells")
    try:
        run([] if args.page else todo(chosen, read(args.results), args.fresh), args.results)
    except KeyboardInterrupt:
        print("\ninterrupted: the same command continues", file=sys.stderr)
        return 130
    if not args.only:
        PAGE.write_text(page(CELLS, read(args.results), PAGE.read_text()))
        print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
