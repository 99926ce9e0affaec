"""Verdicts against truth: four ranks train in each parallel shape with each fault, and their clocks say what was lost.

    .venv/bin/python benchmarks/shapes.py [--only TEXT ...] [--times N] [--json FILE]

The shapes, faults and clocks are those of tests/together/test_parallel.py, which only checks that errors are
small. Here they are printed. Ranks are in network namespaces: a slow link needs root, ip and tc, and is left out where
they are missing. One round takes ten minutes. These are not tests: nothing here passes or fails.

By the clocks, a transfer lasts until the rank goes on. The report tells apart the part in which the rank's own threads
got no CPU (`collective_queue`). So a verdict on a slow link is right if it lies between what the clocks say and that
minus this part.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from parallel.cases import SHAPES
from parallel.lab import Lab
from parallel.spec import FAULTS, LINK
from parallel.verdicts import named, queued
from support_forks import Forks

CLOSE = 0.05
"""The error that a verdict should stay below, as a share of the wall time."""


class Row(NamedTuple):
    """One run. Shares are of the time of all ranks."""

    shape: str
    fault: str
    family: str | None
    """By the clocks; None: nothing was injected."""
    share: float
    verdict: str
    told: float
    culprit: str
    """Whether the verdict names the rank: yes, no, or empty if there is none to name."""
    queued: float
    """In transfers over a slow link, the part in which the ranks' own threads got no CPU."""
    stolen: float
    """The share of this machine's CPU time that its hypervisor gave to others meanwhile."""

    @property
    def error(self) -> float:
        """How far the verdict is outside of what the clocks allow."""
        return self.told - max(self.share - self.queued, min(self.share, self.told))

    @property
    def right(self) -> bool:
        return self.family in (None, self.verdict) and self.culprit != "no"


def measure(lab: Lab, shape: str, fault: str) -> Row:
    run = lab.run(shape, fault, again=True)
    truth, report = run.truth, run.report
    verdict = report["verdict"]
    without_cpu = queued(report, truth.link)
    culprit = "" if truth.culprit is None else "yes" if named(report, truth) else "no"
    told = verdict["family"], verdict["share"]
    return Row(shape, fault, truth.family, truth.share, *told, culprit, without_cpu, run.stolen)


def rows(chosen: list[tuple[str, str]], times: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, Forks() as forks, Lab(Path(folder), forks) as lab:
        if lab.lacks:
            print(f"no slow link: it {lab.lacks}", file=sys.stderr)
        for _ in range(times):
            for shape, fault in chosen:
                if fault != LINK or not lab.lacks:
                    yield measure(lab, shape, fault)


def line(row: Row) -> str:
    known = f"{row.family} {row.share:.1%}" if row.family else "nothing"
    queued = f"{row.queued:.1%}" if row.fault == LINK else ""
    error = f"{100 * row.error:+.1f}" if row.family else ""
    told = f"{row.verdict} {row.told:.1%}"
    cells = (row.shape, row.fault, known, queued, told, error, row.culprit, f"{row.stolen:.0%}")
    return "| " + " | ".join(cells) + " |"


def summary(found: list[Row]) -> str:
    faulty = [row for row in found if row.family]
    errors = sorted(abs(row.error) for row in faulty if row.verdict == row.family)
    close = sum(error <= CLOSE for error in errors)
    return (
        f"{len(found)} runs. Family and rank are right in {sum(row.right for row in faulty)} of {len(faulty)} runs with"
        f" a fault. The error is at most {100 * CLOSE:.0f} points in {close}, {100 * median(errors):.1f} in the median,"
        f" {100 * errors[-1]:.1f} at most."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="cases such as gpipe-slow-link")
    parser.add_argument(
        "--times", type=int, default=1, metavar="N", help="run each case so often (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the runs to a file")
    args = parser.parse_args()
    cases = [(shape, fault) for shape in SHAPES for fault in FAULTS]
    chosen = [case for case in cases if any(text in "-".join(case) for text in args.only)]
    if not chosen:
        parser.error(f"no case has {' or '.join(args.only)} in its name: {', '.join('-'.join(case) for case in cases)}")
    print("| shape | fault | by the clocks | … without a CPU | verdict | points | names the rank | stolen CPU time |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    found = []
    for row in rows(chosen, args.times):
        found.append(row)
        print(line(row), flush=True)
    if any(row.family for row in found):
        print("\n" + summary(found))
    if args.json:
        args.json.write_text(json.dumps([row._asdict() for row in found], indent=1))


if __name__ == "__main__":
    main()
