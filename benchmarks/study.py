"""Trains a small language model on several storages and two networks, and measures what each of them is worth.

    sudo .venv/bin/python benchmarks/study.py [--steps N] [--rounds N] [--prices FILE] [--picture FILE]   (make study)

Two ranks train data-parallel, each in a network namespace with a link of limited rate. Their files are on real file
systems: memory, a disk with a limited rate, NFS, an object store behind FUSE, and rclone's cache before it. Each
training leaves a result in --out, so that a study that was stopped continues. Every time is printed twice: as whyidle
has it from the ledgers, and by the training's own clock. Needs root, ip, tc, libfuse3 and a C compiler. This is not a
test: nothing passes or fails.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ranks import Failed
from study_cells import LINKS, RANKS, STORAGES, Cell, Result, measure, prepared, read
from study_picture import draw
from study_prices import InvalidPrices, Prices, read_prices
from study_tables import effects_table, end_to_end_table, gathered, learned, prices_table, tiers_table
from study_text import TooLittleText
from whatif_network import missing, network

from whyidle.advisor.compare.comparison import compare

OUT = Path("build/study")
UNFINISHED = 3
"""The exit status if --for was over before the last training."""


def main() -> int:
    args = _arguments()
    if os.geteuid():
        print("study: needs root, to make network namespaces and to mount file systems", file=sys.stderr)
        return 2
    if lacking := missing():
        print(f"study: this machine {lacking}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _stop)
    try:
        prices = read_prices(args.prices) if args.prices else Prices()
        results = _results(args)
    except InvalidPrices as error:
        print(f"study: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"study: stopped; the trainings that ended are in {args.out}, and nothing else is left", file=sys.stderr)
        return 130
    except (Failed, TooLittleText, AssertionError, OSError, subprocess.SubprocessError) as error:
        print(f"study: a training failed, those before it are in {args.out}:\n{error}", file=sys.stderr)
        return 1
    if results is None:
        return UNFINISHED
    _show(results, prices, args.picture)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="of each training (default: %(default)s; at least 20)")
    parser.add_argument("--rounds", type=int, default=2, help="how often each set-up trains (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="results (default: %(default)s)")
    parser.add_argument("--prices", type=Path, metavar="FILE", help="prices, as JSON (see docs/study.md)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="where to draw the picture (SVG)")
    parser.add_argument(
        "--for", dest="limit", type=float, metavar="SECONDS", help="begin no training after this time, and exit with 3"
    )
    args = parser.parse_args()
    if args.steps < 20:
        parser.error("--steps must be 20 or more: of fewer there are no intervals")
    if args.rounds < 1:
        parser.error("--rounds must be 1 or more")
    return args


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def _results(args: argparse.Namespace) -> list[Result] | None:
    """The results of all trainings, or None if the time was over before."""
    cells, began = _cells(args.rounds), time.monotonic()
    found = {cell: result for cell in cells if (result := read(cell, args.out, args.steps))}
    if found:
        print(f"{len(found)} of {len(cells)} trainings are in {args.out}", file=sys.stderr)
    if len(found) < len(cells):
        with contextlib.ExitStack() as stack:
            files = stack.enter_context(prepared())
            names = stack.enter_context(network(RANKS + 1))
            for number, cell in enumerate(cells, 1):
                if cell in found:
                    continue
                if args.limit is not None and time.monotonic() - began > args.limit:
                    print(f"study: {len(found)} of {len(cells)} trainings are done: run it again", file=sys.stderr)
                    return None
                print(f"{number} of {len(cells)}: {cell.name}, {args.steps} steps", file=sys.stderr, flush=True)
                found[cell] = measure(cell, args.out, args.steps, names, files)
                print(f"    {found[cell].own.total:.1f} s", file=sys.stderr, flush=True)
    return [found[cell] for cell in cells]


def _cells(rounds: int) -> list[Cell]:
    """All trainings in their order. Storages that this machine lacks are left out, and named."""
    here = []
    for storage in STORAGES:
        if lacking := storage.lacks:
            print(f"{storage.name} is left out: this machine {lacking}", file=sys.stderr)
        else:
            here.append(storage)
    return [Cell(storage, link, number) for number in range(rounds) for storage in here for link in LINKS]


def _show(results: list[Result], prices: Prices, picture: Path | None) -> None:
    found = gathered(results)
    tables = (end_to_end_table(found), tiers_table(found), prices_table(found, prices), effects_table(found))
    print(*tables, learned(found), sep="\n\n")
    if picture:
        first = compare([(one.cell.name, one.report) for one in found])
        picture.write_text(draw(first), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
