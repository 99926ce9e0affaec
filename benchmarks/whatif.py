"""Checks what-if predictions: predicts a fast run from a slow one, trains both, and compares.

    .venv/bin/python benchmarks/whatif.py [--steps N] [--only TEXT ...] [--json FILE]

In the slow runs, the links of the ranks' network namespaces are shaped, shards are on a slow file system (FUSE), one
rank is late, or one stage of a pipeline computes for longer. Each setting is trained twice, in turns. The prediction is
made from the first slow run. The truth is the median step of both fast runs, by the job's own clock. Needs root, ip,
tc, and for slow reads libfuse3 and a C compiler. Cases that need a missing program are left out, and the output says
so. This is not a test: nothing passes or fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from ranks import run_ranks
from whatif_network import missing, network, shaped

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))  # for the slow file system

from support_bottlenecks_disks import missing as lacks_fuse
from support_bottlenecks_disks import slow_folder
from whatif_job import SHARD_BYTES, WARM, Job, train

from whyidle.advisor.whatif.answer import options_of
from whyidle.advisor.whatif.changes import NONE, Changes
from whyidle.advisor.whatif.replay import saved
from whyidle.advisor.whatif.trace import Trace, trace_of
from whyidle.ledger.directory import read_directory

READ_MS = 60
"""Milliseconds of one read (at most 128 KiB) of the slow file system."""
SHARDS = 64
LATE, EVEN, UNEVEN = 0.08, 0.06, 0.15
"""Seconds per step: by how much a rank is late; the compute of an even pipeline stage; that of an uneven one."""
LIMIT_SECONDS = 120.0
RANKS = 4
"""The number of ranks in the largest setting."""


@dataclass(frozen=True)
class Setting:
    """One way to run the job."""

    mbit: int = 0
    """The rate of each rank's link in Mbit/s. 0 means not shaped."""
    slow_reads: bool = False
    workers: int = 1
    compute: tuple[float, ...] = (0.06, 0.06)
    pipeline: bool = False
    width: int = 512


@dataclass(frozen=True)
class Case:
    name: str
    slow: Setting
    fast: Setting
    changes: Changes
    fuse: bool = False


DDP, PIPE = Setting(), Setting(compute=(EVEN,) * 4, pipeline=True)
SLOW_LINK = replace(DDP, mbit=100)
LATE_RANK = replace(DDP, compute=(0.06, 0.06 + LATE))
READS = replace(DDP, slow_reads=True)
READS_INSIDE = replace(READS, workers=0)
UNEVEN_STAGE = replace(PIPE, compute=(EVEN, UNEVEN, EVEN, EVEN))
BALANCED = replace(PIPE, compute=((3 * EVEN + UNEVEN) / 4,) * 4)
CASES = (
    Case("100 Mbit/s to 1 Gbit/s", SLOW_LINK, replace(DDP, mbit=1000), Changes(network=0.1)),
    Case("100 Mbit/s to 400 Mbit/s", SLOW_LINK, replace(DDP, mbit=400), Changes(network=0.25)),
    Case("100 Mbit/s to unlimited", SLOW_LINK, DDP, Changes(network=NONE)),
    Case(
        "100 Mbit/s to unlimited, 4.2 MB of gradients",
        replace(SLOW_LINK, width=1024),
        replace(DDP, width=1024),
        Changes(network=NONE),
    ),
    Case("late rank removed", LATE_RANK, DDP, Changes(no_stragglers=True)),
    Case("slow reads in a worker to fast ones", READS, DDP, Changes(storage=NONE), fuse=True),
    Case(
        "slow reads in the loop to fast ones", READS_INSIDE, replace(DDP, workers=0), Changes(storage=NONE), fuse=True
    ),
    Case("slow reads, 1 worker to 2", READS, replace(READS, workers=2), Changes(workers=1), fuse=True),
    Case("uneven stage balanced", UNEVEN_STAGE, BALANCED, Changes(balanced=True)),
    Case(
        "100 Mbit/s and a late rank, both removed",
        replace(LATE_RANK, mbit=100),
        DDP,
        Changes(network=NONE, no_stragglers=True),
    ),
    Case(
        "100 Mbit/s and a late rank, link to 1 Gbit/s",
        replace(LATE_RANK, mbit=100),
        replace(LATE_RANK, mbit=1000),
        Changes(network=0.1),
    ),
    Case(
        "slow reads in the loop and a late rank, reads fast",
        replace(LATE_RANK, slow_reads=True, workers=0),
        replace(LATE_RANK, workers=0),
        Changes(storage=NONE),
        fuse=True,
    ),
    Case(
        "slow reads in a worker and 100 Mbit/s, link unlimited",
        replace(READS, mbit=100),
        READS,
        Changes(network=NONE),
        fuse=True,
    ),
    Case(
        "uneven stage and 20 Mbit/s, balanced",
        replace(UNEVEN_STAGE, mbit=20),
        replace(BALANCED, mbit=20),
        Changes(balanced=True),
    ),
    Case(
        "uneven stage and 20 Mbit/s, link unlimited",
        replace(UNEVEN_STAGE, mbit=20),
        UNEVEN_STAGE,
        Changes(network=NONE),
    ),
)


@dataclass(frozen=True)
class Outcome:
    ledgers: Path
    steps: list[float]
    """Seconds of each step, by the job's own clock. The mean over ranks."""


class Bench:
    """Trains settings, each in its own folder."""

    def __init__(self, folder: Path, steps: int, names: tuple[str, ...]):
        self.folder, self.steps, self.names = folder, steps, names
        self.shards = folder / "shards"
        self.shards.mkdir()
        for number in range(SHARDS):
            (self.shards / f"{number:03}").write_bytes(os.urandom(SHARD_BYTES))
        self.slow: Path | None = None
        self._runs = 0

    def train(self, setting: Setting) -> Outcome:
        self._runs += 1
        folder = self.folder / str(self._runs)
        folder.mkdir()
        data = self.slow if setting.slow_reads else self.shards
        job = Job(self.steps, str(data), setting.workers, setting.compute, setting.pipeline, setting.width)
        names = self.names[: len(setting.compute)]
        with shaped(self.names, setting.mbit):
            run_ranks(lambda rank: train(job, rank, folder), names, folder, "whatif", limit_seconds=LIMIT_SECONDS)
        ends = [[int(line) for line in (folder / f"ends-{rank}").read_text().split()] for rank in range(len(names))]
        took = [[(end - start) / 1e9 for start, end in pairwise(mine[WARM - 1 :])] for mine in ends]
        return Outcome(folder / "ledgers", [mean(step) for step in zip(*took, strict=True)])


def steps_of(outcome: Outcome) -> Trace:
    ledgers, problems = read_directory(str(outcome.ledgers), steps=True)
    assert not problems, problems
    return trace_of(ledgers)


def step_ms(trace: Trace, changes: Changes) -> float:
    """The predicted median step in ms after a change."""
    return median(wall - gained for wall, gained in zip(trace.walls, saved(trace, changes), strict=True)) / 1e6


def compare(case: Case, slow: list[Outcome], fast: list[Outcome]) -> dict[str, Any]:
    trace = steps_of(slow[0])
    told, truth = step_ms(trace, case.changes), 1e3 * median(step for one in fast for step in one.steps)
    return {
        "case": case.name,
        "options": options_of(case.changes),
        "slow_ms": 1e3 * median(slow[0].steps),
        "predicted_ms": told,
        "bounds_ms": [step_ms(trace, case.changes.most()), step_ms(trace, case.changes.least())],
        "truth_ms": truth,
        "fast_runs_ms": [1e3 * median(one.steps) for one in fast],
        "error": told / truth - 1,
    }


HEADINGS = ("case", "change", "slow", "predicted", "bounds", "measured", "error")


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{' --- |' * len(HEADINGS)}"]
    for row in rows:
        runs = ", ".join(f"{ms:.0f}" for ms in row["fast_runs_ms"])
        lines.append(
            f"| {row['case']} | `{row['options']}` | {row['slow_ms']:.0f} ms | {row['predicted_ms']:.0f} ms"
            f" | {row['bounds_ms'][0]:.0f} to {row['bounds_ms'][1]:.0f} ms"
            f" | {row['truth_ms']:.0f} ms ({runs}) | {100 * row['error']:+.1f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="cases whose names have this in them")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    args = parser.parse_args()
    if lacking := missing():
        print(f"nothing to compare: this machine {lacking}")
        return
    no_fuse = lacks_fuse()
    cases = [case for case in CASES if any(text in case.name for text in args.only) and not (case.fuse and no_fuse)]
    if no_fuse:
        print(f"without slow reads: this machine {no_fuse}")
    rows = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whyidle-whatif-", dir="/dev/shm")))
        bench = Bench(folder, args.steps, stack.enter_context(network(RANKS)))
        if not no_fuse:
            bench.slow = stack.enter_context(slow_folder(bench.shards, folder / "slow", read_ms=READ_MS, cached=True))
        for case in cases:
            slow, fast = [], []
            for _ in range(2):
                slow.append(bench.train(case.slow))
                fast.append(bench.train(case.fast))
            rows.append(compare(case, slow, fast))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    print(f"\n{table(rows)}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
