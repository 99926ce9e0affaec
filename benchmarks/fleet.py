"""What the dashboards and rules of a fleet cost Prometheus: 1,024 nodes of 8 GPUs.

    python benchmarks/fleet.py [--nodes N] [--per-run N] [--live SECONDS] [--json FILE] [--victoriametrics [BINARY]]

The series are a real agent's, multiplied (benchmarks/synthetic.py), and come in by remote write, in order of time:

    1. a first server takes ten minutes of all nodes and evaluates the shipped rules: it says which series they record
    2. a second takes a day of what was recorded, a sample a minute (--step), with the raw series of a few nodes; then
       the last half hour of all nodes, in steps of 15 s; then live data, while the rules are evaluated
    3. every query of every dashboard is asked over 30 minutes and over 24 hours, as Grafana would, several times

Values of recorded series stay as the first server recorded them: their number and length is what a query pays for.
Scraping is not in it. The queries go to VictoriaMetrics too, with the same data, where it is asked for; its rules would
be vmalert's, and are not timed. These are not tests: nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from asked import Question, questions
from remote_write import Batch
from servers import Prometheus, Server, VictoriaMetrics
from synthetic import BATCH, GPUS, Fleet, template

SCRAPE_SECONDS = 15
RANGES = {"30m": 1800, "24h": 86_400}
FIRST_SECONDS = 600
SAMPLED_NODES = 4
"""Nodes that have a day of raw series, so that the dashboard of a node has one to draw."""


@dataclass
class History:
    """What goes into a server, in order of time."""

    fleet: Fleet
    recorded: list[Batch]
    start: float
    step: int  # seconds, of all but the last half hour

    def write(self, server: Server, end: float) -> int:
        """A day, the last half hour of it whole -> samples written."""
        whole = [*self.fleet.batches(range(self.fleet.nodes))]
        few = [*self.fleet.batches(range(min(SAMPLED_NODES, self.fleet.nodes)))]
        written, recent = 0, end - RANGES["30m"] - FIRST_SECONDS
        moment = end - RANGES["24h"] - FIRST_SECONDS
        while moment < recent:
            written += push(server, [*self.recorded, *few], moment, self.start)
            moment += self.step
        while moment < end:
            due = moment % self.step < SCRAPE_SECONDS
            written += push(server, [*(self.recorded if due else []), *whole], moment, self.start)
            moment += SCRAPE_SECONDS
        return written


def push(server: Server, batches: Iterable[Batch], moment: float, start: float) -> int:
    written = 0
    for batch in batches:
        server.write(batch.at(moment, start))
        written += len(batch)
    return written


def live(server: Server, batches: list[Batch], start: float, seconds: float) -> None:
    """Goes on writing every 15 s, as scrapes would."""
    end = time.time() + seconds
    while time.time() < end:
        began = time.time()
        push(server, batches, began, start)
        time.sleep(max(0.0, SCRAPE_SECONDS - (time.time() - began)))


# -- what is measured ------------------------------------------------------------------------------------------------


def recorded_batches(server: Prometheus) -> list[Batch]:
    """The series that the rules record, with the values that they have now."""
    found = server.recorded()
    return [
        Batch([labels for labels, _ in chunk], [value for _, value in chunk], [0.0] * len(chunk))
        for chunk in (found[at : at + BATCH] for at in range(0, len(found), BATCH))
    ]


def ask(server: Server, asked: list[Question], seconds: int, rounds: int) -> dict[str, Any]:
    """Every query over one range -> seconds each, by dashboard, and what was empty or failed."""
    times: dict[Question, list[float]] = {}
    empty: set[str] = set()
    failed: dict[str, str] = {}
    end = time.time() - 2 * SCRAPE_SECONDS
    for _ in range(rounds):
        for question in asked:
            query = question.filled(seconds, SCRAPE_SECONDS)
            began = time.perf_counter()
            try:
                count = answer(server, question, query, end, seconds)
            except OSError as error:
                failed[query] = str(error)
                continue
            times.setdefault(question, []).append(time.perf_counter() - began)
            if not count:
                empty.add(f"{question.dashboard}: {question.panel}: {query}")
    dashboards = {question.dashboard: [] for question in asked}
    for question, took in times.items():
        dashboards[question.dashboard] += took
    slowest = sorted(times, key=lambda question: -max(times[question]))[:10]
    return {
        "of": {name: spread(values) for name, values in dashboards.items()},
        "all": spread([one for took in times.values() for one in took]),
        "slowest": [
            {"panel": f"{one.dashboard}: {one.panel}", "query": one.expr, "seconds": times[one]} for one in slowest
        ],
        "empty": sorted(empty),
        "failed": failed,
    }


def answer(server: Server, question: Question, query: str, end: float, seconds: int) -> int:
    if question.label:
        return server.values(question.label, query, end, seconds)
    step = question.step(seconds, SCRAPE_SECONDS)
    return server.ask(query, end, 0 if question.instant else seconds, step)


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {"queries": 0}
    return {
        "queries": len(ordered),
        "p50": statistics.median(ordered),
        "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "max": ordered[-1],
    }


def measure(server: Server, history: History, args: argparse.Namespace) -> dict[str, Any]:
    end = time.time()
    began = time.perf_counter()
    written = history.write(server, end)
    found: dict[str, Any] = {"samples": written, "write_seconds": time.perf_counter() - began}
    whole = [*history.fleet.batches(range(history.fleet.nodes))]
    now = time.time()
    for moment in range(int(end) + SCRAPE_SECONDS, int(now), SCRAPE_SECONDS):  # what the writing took
        push(server, whole, float(moment), history.start)
    if isinstance(server, Prometheus):
        server.load_rules()
    cpu, began = server.cpu_seconds(), time.perf_counter()
    live(server, whole, history.start, args.live)
    found["live_cpu_seconds_per_minute"] = (server.cpu_seconds() - cpu) / (time.perf_counter() - began) * 60
    if isinstance(server, Prometheus):
        while server.evaluated() < 2:  # the first time, what other rules record is not there yet
            live(server, whole, history.start, SCRAPE_SECONDS)
        found["rules"] = server.rule_seconds()
    found["series"] = server.series()
    for name, seconds in RANGES.items():
        found[name] = ask(server, questions(history.fleet), seconds, args.rounds)
    found["resident_bytes"] = server.resident_bytes()
    return found


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="whyidle-fleet-") as name:
        yield Path(name)


def first_look(fleet: Fleet, start: float, binary: str) -> tuple[list[Batch], dict[str, int]]:
    """Which series the rules record, from ten minutes of all nodes."""
    with folder() as scratch, Prometheus(scratch, binary, rules=True) as server:
        batches = [*fleet.batches(range(fleet.nodes))]
        now = time.time()
        for back in range(FIRST_SECONDS, 0, -2 * SCRAPE_SECONDS):
            push(server, batches, now - back, start)
        rounds = server.evaluated()
        while server.evaluated() < rounds + 2:  # groups that build on others need another round
            live(server, batches, start, SCRAPE_SECONDS)
        found = recorded_batches(server)
        return found, {"raw": sum(len(batch) for batch in batches), "recorded": sum(len(batch) for batch in found)}


def main() -> int:
    parser = argparse.ArgumentParser(description="What the dashboards and rules of a fleet cost Prometheus.")
    parser.add_argument("--nodes", type=int, default=1024, help="nodes of 8 GPUs (default: %(default)s)")
    parser.add_argument("--per-run", type=int, default=128, help="nodes of a run (default: %(default)s)")
    parser.add_argument("--live", type=float, default=180, help="seconds of live data (default: %(default)s)")
    parser.add_argument(
        "--step", type=int, default=60, help="seconds between samples of the day (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="times that each query is asked (default: %(default)s)")
    parser.add_argument("--prometheus", default="prometheus", help="the binary (default: %(default)s)")
    parser.add_argument(
        "--victoriametrics", nargs="?", const="victoria-metrics", metavar="BINARY", help="ask VictoriaMetrics too"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end too
    for binary in filter(None, (args.prometheus, args.victoriametrics)):
        if not shutil.which(binary):
            print(f"needs {binary} (Debian's packages prometheus and victoria-metrics have them)", file=sys.stderr)
            return 1
    fleet = Fleet(template(), args.nodes, min(args.per_run, args.nodes))
    start = time.time() - 2 * RANGES["24h"]
    recorded, counts = first_look(fleet, start, args.prometheus)
    print(f"{counts['raw']} raw series, {counts['recorded']} recorded", file=sys.stderr)
    history = History(fleet, recorded, start, args.step)
    found: dict[str, Any] = {
        "date": date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
        "gpus": args.nodes * GPUS,
        "step_seconds": args.step,
        "series_per_gpu": {name: count / (args.nodes * GPUS) for name, count in counts.items()},
        "servers": {},
    }
    with folder() as scratch, Prometheus(scratch, args.prometheus, rules=False) as server:
        found["servers"]["prometheus"] = measure(server, history, args)
    keep(found, args.json)
    if args.victoriametrics:
        with folder() as scratch, VictoriaMetrics(scratch, args.victoriametrics) as server:
            found["servers"]["victoriametrics"] = measure(server, history, args)
        keep(found, args.json)
    show(found)
    return 0


def keep(found: dict[str, Any], file: str | None) -> None:
    """After each server: the next one may take long."""
    if file:
        Path(file).write_text(json.dumps(found, indent=2) + "\n")


def show(found: dict[str, Any]) -> None:
    series = ", ".join(f"{count:.0f} {name}" for name, count in found["series_per_gpu"].items())
    print(f"{found['date']}, {found['machine']}, {found['gpus']} GPUs; series per GPU: {series}")
    for name, server in found["servers"].items():
        print(f"{name}: {server['series']:,} series, {server['resident_bytes'] / 1e9:.1f} GB resident, ", end="")
        print(
            f"{server['live_cpu_seconds_per_minute']:.1f} CPU-seconds a minute of live data"
            + (" and rules" if "rules" in server else "")
        )
        if rules := server.get("rules"):
            print(f"  rules: {rules['per_minute']:.2f} s a minute; slowest group {rules['slowest']}")
        for window in RANGES:
            for dashboard, one in {**server[window]["of"], "all": server[window]["all"]}.items():
                figures = " ".join(f"{figure} {one.get(figure, 0):7.3f} s" for figure in ("p50", "p95", "max"))
                print(f"  {window:>4} {dashboard:<18} {one['queries']:4} queries  {figures}")
            print(f"       {len(server[window]['empty'])} empty, {len(server[window]['failed'])} failed")


if __name__ == "__main__":
    sys.exit(main())
