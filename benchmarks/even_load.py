"""What `whyidle.share` gives back when one of four ranks is 1.5 times as slow, with DDP and with FSDP2.

    python benchmarks/even_load.py                  # about 6 minutes; --json FILE

Each row is a run of examples/even_load.py: a microbatch sleeps instead of computing, so that the cores of this machine
do not decide. The losses of all runs of a framework must be the same: they train on the same samples.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

EXAMPLE = Path(__file__).parents[1] / "examples" / "even_load.py"
_LINE = re.compile(r"step (\d+) counts (\[.*?\]) loss (\S+) seconds (\S+)")
RANKS, SLOW = 4, 3
WAYS = {
    "healthy, equal shares": ("--equal",),
    "healthy": (),
    "slow, equal shares": ("--equal", "--slow", str(SLOW)),
    "slow": ("--slow", str(SLOW)),
}


class Run(NamedTuple):
    counts: list[int]
    """The last shares."""
    before: float
    after: float
    """Seconds of a step: of the first 20 steps, and the median of the last ones, 20 at a time."""
    losses: list[float]


def train(words: tuple[str, ...]) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        env = {**os.environ, "WHYIDLE_DIR": folder, "OMP_NUM_THREADS": "1"}
        said = subprocess.run([*command, str(EXAMPLE), *words], env=env, check=True, capture_output=True, text=True)
    lines = [match.groups() for match in _LINE.finditer(said.stdout)]
    seconds = [float(line[3]) for line in lines]
    return Run(
        json.loads(lines[-1][1]), seconds[0], statistics.median(seconds[-4:]), [float(line[2]) for line in lines]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=140)
    parser.add_argument("--work", type=float, default=0.015, help="seconds of a microbatch")
    parser.add_argument("--frameworks", nargs="+", default=["ddp", "fsdp2"], choices=["ddp", "fsdp2"])
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    args = parser.parse_args()
    rows = []
    for framework in args.frameworks:
        more = ("--steps", str(args.steps), "--work", str(args.work), *(("--fsdp2",) if framework == "fsdp2" else ()))
        runs = {}
        for way, words in WAYS.items():
            runs[way] = run = train((*words, *more))
            print(f"{framework:6} {way:22} {run.counts!s:16} {1000 * run.after:7.1f} ms a step", flush=True)
            rows.append({"framework": framework, "way": way, **run._asdict()})
        apart = max(
            abs(one / other - 1)
            for run in runs.values()
            for one, other in zip(run.losses, runs["healthy, equal shares"].losses, strict=True)
        )
        lost = runs["slow, equal shares"].after - runs["healthy, equal shares"].after
        back = (runs["slow, equal shares"].after - runs["slow"].after) / lost
        change = runs["healthy"].after / runs["healthy, equal shares"].after - 1
        print(
            f"{framework:6} {100 * back:.0f} % of the lost time is back; a healthy run: {100 * change:+.1f} %;", end=""
        )
        print(f" losses differ by at most {apart:.1e}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
