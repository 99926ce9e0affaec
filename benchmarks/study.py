"""Trains on three storages and two networks, and measures how much each of them speeds up the training.

    sudo .venv/bin/python benchmarks/study.py [--steps N] [--out DIR] [--picture FILE]      (make study)

Two ranks train data-parallel in network namespaces with shaped links. Their storage is local, has the latency of a
network file system, or is as slow as an object store (FUSE). All figures are those of `whyidle compare`. A run with one
rank and a run with four ranks, on the best storage and network, show how the training scales. Needs root, ip, tc,
libfuse3 and a C compiler. With --out the reports are kept, for `whyidle compare`. This is not a test: nothing passes or
fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ranks import Failed, run_ranks
from study_job import Job, prepare, train
from study_picture import draw
from whatif_network import missing, network, shaped

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))  # for the slow file system

from support_bottlenecks_disks import missing as lacks_fuse
from support_bottlenecks_disks import slow_folder

from whyidle.advisor.compare.comparison import Comparison, Row, compare
from whyidle.cli.compare.text import Table, between, markdown_table, seconds, times
from whyidle.ledger.directory import read_directory
from whyidle.verdict.enough import NO_LIMITS
from whyidle.verdict.report import build_report, runs
from whyidle.verdict.saved import Report

LIMIT_SECONDS = 120.0
RANKS = 2
WORLDS = (1, 4)
"""The numbers of ranks in the runs that show how the training scales."""


class Storage(NamedTuple):
    name: str
    latency_ms: int = 0
    bytes_per_second: int = 0
    """0 means that the storage is local, without FUSE."""


class Network(NamedTuple):
    name: str
    mbit: int


STORAGES = (
    Storage("object", 12, 20_000_000),
    Storage("shared", 3, 100_000_000),
    Storage("local"),
)
NETWORKS = (Network("100mbit", 100), Network("4gbit", 4000))
"""Networks from the slowest to the fastest. The second is forty times as fast as the first."""
COLUMNS = ("dataset", "restore", "batch", "batch-p99", "step", "save", "end")
"""The measures in the table."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="of each run (default: %(default)s; at least 20)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to leave the reports")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="where to draw the picture (SVG)")
    args = parser.parse_args()
    if args.steps < 20:
        parser.error("--steps must be 20 or more: of fewer there are no intervals")
    if os.geteuid():
        print("study: needs root, to make network namespaces and to mount file systems", file=sys.stderr)
        return 2
    if lacking := missing() or lacks_fuse():
        print(f"study: this machine {lacking}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _stop)
    began = time.monotonic()
    try:
        reports, scaled = _reports(args.steps)
    except KeyboardInterrupt:
        print("study: stopped; nothing is left behind", file=sys.stderr)
        return 130
    except Failed as error:
        print(f"study: a rank failed:\n{error}", file=sys.stderr)
        return 1
    found = compare([*reports.items()])
    print(table(found), effects(reports), scaling(scaled), sep="\n\n")
    print(f"\n{time.monotonic() - began:.0f} s, {args.steps} steps a run")
    if args.out:
        _leave(args.out, {**reports, **scaled})
    if args.picture:
        args.picture.write_text(draw(found), encoding="utf-8")
    return 0


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def _leave(folder: Path, reports: dict[str, Report]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, report in reports.items():
        (folder / f"{name}.json").write_text(json.dumps(report))


def _reports(steps: int) -> tuple[dict[str, Report], dict[str, Report]]:
    """Runs all trainings. Returns two dicts of reports by name.

    The first has each storage on each network. The second has the other world sizes, on the best of both.
    """
    found: dict[str, Report] = {}
    scaled: dict[str, Report] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whyidle-study-", dir="/dev/shm")))
        names = stack.enter_context(network(max(RANKS, *WORLDS)))
        for storage in STORAGES:
            with _mounted(storage, folder) as place:
                for link in NETWORKS:
                    name = f"{storage.name}-{link.name}"
                    found[name] = _trained(name, Job(steps, RANKS, place), names, link, folder)
        best = found[f"{STORAGES[-1].name}-{NETWORKS[-1].name}"]
        for world in sorted((RANKS, *WORLDS)):
            name = f"{world}-rank{'s' * (world > 1)}"
            job = Job(steps, world, folder / STORAGES[-1].name)
            scaled[name] = best if world == RANKS else _trained(name, job, names, NETWORKS[-1], folder)
    return found, scaled


@contextlib.contextmanager
def _mounted(storage: Storage, folder: Path) -> Iterator[Path]:
    below = folder / storage.name
    prepare(below)
    if not storage.bytes_per_second:
        yield below
        return
    at = folder / f"{storage.name}-mounted"
    slow = slow_folder(below, at, read_ms=storage.latency_ms, cached=True, bytes_per_second=storage.bytes_per_second)
    with slow as place:
        yield place


def _trained(name: str, job: Job, names: tuple[str, ...], link: Network, folder: Path) -> Report:
    print(f"{name}: {job.steps} steps", file=sys.stderr, flush=True)
    own = folder / f"run-{name}"
    own.mkdir()
    members = names[: job.ranks]
    with shaped(members, link.mbit):
        run_ranks(lambda rank: train(job, rank), members, own, name, limit_seconds=LIMIT_SECONDS)
    ledgers, problems = read_directory(str(own / "ledgers"), steps=True)
    report: dict[str, Any] = build_report(runs(ledgers)[0], ledgers, time.monotonic_ns(), problems, least=NO_LIMITS)
    return report


def table(found: Comparison) -> str:
    """A table with one row per run. Speed-ups are relative to the slowest storage on the slowest network."""
    first = found.runs[0].name
    by_name = {pair.name: {row.name: row for row in (*pair.rows, pair.whole)} for pair in found.pairs}
    any_pair = next(iter(by_name.values()))
    header = ["", *(any_pair[name].label for name in COLUMNS), "step, speed-up", "end to end, speed-up"]
    rows = [[first, *(seconds(any_pair[name].before) for name in COLUMNS), "1×", "1×"]]
    for name, mine in by_name.items():
        rows.append(
            [
                name,
                *(seconds(mine[column].after) for column in COLUMNS),
                _faster(mine["step"]),
                times(mine["end"].speedup),
            ]
        )
    return "\n".join(markdown_table(Table("", header, rows, (0,))))


def _faster(row: Row) -> str:
    interval = between(row.speedup_interval, times)
    return f"{times(row.speedup)} ({interval})"


def effects(reports: dict[str, Report]) -> str:
    """A table of the speed-ups by the best network, by the best storage, and by both."""
    worst, best = (STORAGES[0].name, STORAGES[-1].name), (NETWORKS[0].name, NETWORKS[-1].name)
    slowest, fastest = f"{worst[0]}-{best[0]}", f"{worst[1]}-{best[1]}"
    header = [
        "speed-up by",
        "step time",
        "batch wait",
        "checkpoint",
        "end to end",
        "where a step's difference comes from",
    ]
    rows = []
    for what, before, after in (
        (f"network, on {worst[0]}", slowest, f"{worst[0]}-{best[1]}"),
        (f"network, on {worst[1]}", f"{worst[1]}-{best[0]}", fastest),
        (f"storage, on {best[0]}", slowest, f"{worst[1]}-{best[0]}"),
        (f"storage, on {best[1]}", f"{worst[0]}-{best[1]}", fastest),
        ("both", slowest, fastest),
    ):
        [pair] = compare([(before, reports[before]), (after, reports[after])]).pairs
        mine = {row.name: row for row in pair.rows}
        rows.append(
            [what, *(times(mine[name].speedup) for name in ("step", "batch", "save", "end")), _sources(pair.families)]
        )
    return "\n".join(markdown_table(Table("", header, rows, (0, 5))))


def _sources(families: list[Row]) -> str:
    """The families that changed significantly and by at least a twentieth of the largest change."""
    changed = sorted((row for row in families if row.told), key=lambda row: -abs(row.difference or 0.0))
    most = max((abs(row.difference or 0.0) for row in changed), default=0.0)
    kept = [row for row in changed if abs(row.difference or 0.0) >= most / 20]
    return ", ".join(f"{row.name} {seconds(row.difference)}" for row in kept) or "no clear difference"


def scaling(reports: dict[str, Report]) -> str:
    entries = compare([*reports.items()]).scaling
    header = ["", "ranks", "samples a step", "speed-up", "efficiency"]
    rows = [
        [one.name, str(one.world_size), f"{one.samples_per_step or 0:.0f}", times(one.speedup), f"{one.efficiency:.0%}"]
        for one in entries
    ]
    return "\n".join(markdown_table(Table("", header, rows, (0,))))


if __name__ == "__main__":
    sys.exit(main())
