"""Measures what the dashboards and rules of a fleet cost Prometheus: 1,024 nodes of 8 GPUs.

    python benchmarks/fleet.py [--nodes N] [--per-run N] [--live SECONDS] [--json FILE]
    python benchmarks/fleet.py --rules-only --nodes 128 [--memory MINUTES]
    python benchmarks/fleet.py --rules-of-block
    python benchmarks/fleet.py --panels-only [--days 30]
    python benchmarks/fleet.py --victoriametrics [BINARY]

The series are those of a real agent, multiplied (benchmarks/synthetic.py):

    1. A first server evaluates the shipped rules on two nodes of each kind of run. The recorded series are multiplied
       too.
    2. A day of all series, up to now, is written as a block of the database (benchmarks/tsdb_block.py).
    3. A second server opens the block and receives all raw series every 15 s, as if it scraped them: at first without
       rules, then with rules.
    4. Every query of every dashboard is sent several times, over 30 minutes and over 24 hours, as Grafana does it.

Until 75 minutes before the end, raw series have one sample a minute (--step). Recorded series have a sample per
evaluation. Scraping is not included.

--rules-only times only the rules, evaluated every 15 s regardless of their intervals. The server receives the last 66
minutes (--memory) of raw and recorded series and has all of it in memory, as a real server has the hour that rules look
back on. (In the whole benchmark, that hour is in the block and the live data is in memory, and the server merges them.)

--rules-of-block asks only for the expressions of the rules, at the end of a block of 75 minutes with all samples. It
needs no live data, which this machine cannot receive fast enough from 1,024 nodes. A real server has these samples in
memory.

--panels-only writes the block and sends the queries, without live data and rules. --days is the number of days that it
queries. The block has recorded series for all of these days, and raw series for the last day only.

With --victoriametrics, VictoriaMetrics gets the same data through its native import (benchmarks/native_import.py): a
day of one run and of recorded series, an hour of everything else. vmalert would evaluate its rules; they are not timed.

This is not a test: nothing passes or fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

from asked import ask, questions
from evaluations import Evaluations, costs_of_rules
from history import DAY_SECONDS, FINE_SECONDS, live, native, push_past, write_block
from remote_write import Batch
from servers import SCRAPE_SECONDS, Prometheus, Server, VictoriaMetrics
from synthetic import GPUS, Fleet, Recorded, template

RANGES = {"30m": 1800, "24h": 86_400}
DEAREST = 25
FORCED_SECONDS = 15
"""Seconds between evaluations with --rules-only. The time of one evaluation hardly depends on it."""
LEAD_SECONDS = 15, 0.05
"""The expected seconds to write a block: a constant, and seconds per node. The data of the block ends that far in the
future, so that it is current when the server starts."""


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="whyidle-fleet-") as name:
        yield Path(name)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def passed(seconds: float) -> Callable[[], bool]:
    """A function that returns whether this number of seconds has passed since the call of `passed`."""
    end = time.time() + seconds
    return lambda: time.time() >= end


def aligned(moment: float) -> int:
    return int(moment) // SCRAPE_SECONDS * SCRAPE_SECONDS


def first_look(fleet: Fleet, start: float, binary: str) -> Recorded:
    """The series that the rules record, found with a small fleet that has the same kinds of runs."""
    sample = fleet.sample()
    batches = [*sample.batches(range(sample.nodes))]
    with folder() as scratch:
        write_block(scratch / "data", sample, None, start, aligned(time.time()), FINE_SECONDS, SCRAPE_SECONDS)
        with Prometheus(scratch, binary, rules=True, every="5s") as server:
            live(server, batches, start, lambda: server.evaluated() >= 4)  # groups that use other groups need several
            return Recorded(fleet, server.recorded())


def measure(scratch: Path, fleet: Fleet, recorded: Recorded, start: float, args: argparse.Namespace) -> dict[str, Any]:
    """Measures Prometheus with a day of all series."""
    batches = [*fleet.batches(range(fleet.nodes))]
    expected = sum(1 for _ in recorded.series())
    say(f"{sum(map(len, batches))} raw series, {expected} recorded; writes a day")
    end = aligned(time.time() + LEAD_SECONDS[0] + LEAD_SECONDS[1] * fleet.nodes)
    began = time.perf_counter()
    samples = write_block(scratch / "data", fleet, recorded, start, end, DAY_SECONDS, args.step)
    found: dict[str, Any] = {"expected": expected, "samples": samples, "write_seconds": time.perf_counter() - began}
    say(f"{samples:,} samples in {found['write_seconds']:.0f} s; {time.time() - end:+.0f} s of what was planned")
    time.sleep(max(0.0, end - time.time()))
    with Prometheus(scratch, args.prometheus, rules=False) as server:
        live(server, batches, start, lambda: server.series() > 0)
        say(f"{server.series()} series in memory")
        found |= with_rules(server, batches, start, args)
        show_rules(found, fleet.nodes * GPUS)
        found["queries"] = queries(server, fleet, found["end"], args)
        found["resident_bytes_after_queries"] = server.resident_bytes()
        return found


def measure_panels(
    scratch: Path, fleet: Fleet, recorded: Recorded, start: float, args: argparse.Namespace
) -> dict[str, Any]:
    """Measures Prometheus with only a block: a day of all series, and ``args.days`` of recorded series."""
    end, began = aligned(time.time()), time.perf_counter()
    past = args.days * RANGES["24h"] + 600
    samples = write_block(scratch / "data", fleet, recorded, start, end, DAY_SECONDS, args.step, past)
    found: dict[str, Any] = {"samples": samples, "days": args.days, "write_seconds": time.perf_counter() - began}
    say(f"{samples:,} samples in {found['write_seconds']:.0f} s")
    with Prometheus(scratch, args.prometheus, rules=False) as server:
        found["queries"] = queries(server, fleet, end - SCRAPE_SECONDS, args)
        found["resident_bytes_after_queries"] = server.resident_bytes()
    return found


def measure_rules(
    scratch: Path, fleet: Fleet, recorded: Recorded, start: float, args: argparse.Namespace
) -> dict[str, Any]:
    """Measures Prometheus with the last minutes in memory: raw series, and the series that rules record from them."""
    batches = [*fleet.batches(range(fleet.nodes))]
    found: dict[str, Any] = {"expected": sum(1 for _ in recorded.series()), "memory_minutes": args.memory}
    say(f"{sum(map(len, batches))} raw series, {found['expected']} recorded; sends {args.memory} minutes of them")
    with Prometheus(scratch, args.prometheus, rules=False, every=f"{FORCED_SECONDS}s") as server:
        found["samples"] = push_past(server, batches, recorded, args.memory, start)
        say(f"{server.series()} series in memory, {found['samples']:,} samples")
        found |= with_rules(server, batches, start, args)
    show_rules(found, fleet.nodes * GPUS)
    return found


def measure_rules_of_block(
    scratch: Path, fleet: Fleet, recorded: Recorded, start: float, args: argparse.Namespace
) -> dict[str, Any]:
    """Measures the expressions of the rules, at the end of a block that has an hour of all samples."""
    end, began = aligned(time.time()), time.perf_counter()
    samples = write_block(scratch / "data", fleet, recorded, start, end, FINE_SECONDS, SCRAPE_SECONDS)
    say(f"{samples:,} samples in {time.perf_counter() - began:.0f} s; asks the expression of each rule")
    with Prometheus(scratch, args.prometheus, rules=False) as server:
        rules = Evaluations(server).found(costs_of_rules(server, end - SCRAPE_SECONDS))
        show_costs(rules)
        return {"samples": samples, "rules": rules, "resident_bytes": server.resident_bytes()}


def with_rules(server: Prometheus, batches: list[Batch], start: float, args: argparse.Namespace) -> dict[str, Any]:
    """Sends live data without and with rules. The difference in CPU time is the cost of the rules."""
    baseline, over = (2 * SCRAPE_SECONDS, None) if args.rules_only else (args.live / 3, args.live)
    round_cpu, found = without_rules(server, batches, start, baseline)
    server.load_rules()
    watched = Evaluations(server)
    enough = passed(over) if over else lambda: watched.times() >= 3

    def looked() -> bool:
        watched.look()
        return enough()

    cpu, began = server.cpu_seconds(), time.time()
    rounds = live(server, batches, start, looked)
    minutes = (time.time() - began) / 60
    found["seconds_between_samples"] = 60 * minutes / rounds
    found["cpu_of_rules"] = (server.cpu_seconds() - cpu - rounds * round_cpu) / minutes
    found["series"], found["resident_bytes"] = server.series(), server.resident_bytes()
    found["recorded"] = {
        labels["__name__"]: int(count) for labels, count in server.instant('count by (__name__) ({__name__=~".+:.+"})')
    }
    failing = {"failing": server.failing(), "missed": server.missed()}
    found["end"] = time.time() - SCRAPE_SECONDS
    server.load_rules(False)
    say("asks the expression of each rule")
    found["rules"] = watched.found(costs_of_rules(server, found["end"])) | failing
    return found


def without_rules(
    server: Prometheus, batches: list[Batch], start: float, seconds: float
) -> tuple[float, dict[str, Any]]:
    """Sends live data without rules. Returns CPU seconds for a sample of every series, and for a minute of scrapes."""
    cpu = server.cpu_seconds()
    rounds = live(server, batches, start, passed(seconds))
    round_cpu = (server.cpu_seconds() - cpu) / rounds
    return round_cpu, {"cpu_of_data": round_cpu * 60 / SCRAPE_SECONDS}


def queries(server: Server, fleet: Fleet, end: float, args: argparse.Namespace) -> dict[str, Any]:
    """Times the queries of the dashboards over several ranges up to ``end``, which is about the end of the data."""
    found: dict[str, Any] = {}
    ranges = {f"{args.days}d": args.days * RANGES["24h"]} if args.days > 1 else RANGES
    for name, seconds in ranges.items():
        say(f"asks over {name}")
        found[name] = ask(server, questions(fleet), end, seconds, args.rounds)
        show_queries(name, found[name])
    return found


def measure_victoriametrics(
    scratch: Path, fleet: Fleet, recorded: Recorded, start: float, args: argparse.Namespace
) -> dict[str, Any]:
    """Times the same queries with VictoriaMetrics: a day of recorded series and of one run, an hour of all others."""
    end = aligned(time.time())
    given = native(fleet, recorded, start, end, args.step)
    samples, began = given.samples(), time.perf_counter()
    say(f"gives VictoriaMetrics {samples:,} samples, {len(given.lines)} courses")
    with VictoriaMetrics(scratch / "server", args.victoriametrics) as server:
        given.send(server, scratch / "encoder", args.victoriametrics)
        found: dict[str, Any] = {"gpus": fleet.nodes * GPUS, "samples": samples, "series": sum(map(len, given.names))}
        found["import_seconds"] = time.perf_counter() - began
        found["taken"] = server.own('vm_rows_inserted_total{type="native"}')
        del given
        found["resident_bytes"] = server.resident_bytes()
        say(f"took {found['taken']:,.0f} in {found['import_seconds']:.0f} s; {found['resident_bytes'] / 1e9:.2f} GB")
        found["queries"] = queries(server, fleet, end, args)
        found["resident_bytes_after_queries"] = server.resident_bytes()
        print(f"{found['series']} series, {found['resident_bytes_after_queries'] / 1e9:.2f} GB after the queries")
        return found


# -- output ----------------------------------------------------------------------------------------------------------


def raw_families(fleet: Fleet) -> dict[str, float]:
    """Raw series per GPU, by the first word of their names."""
    counts = Counter(line.name.removeprefix("whyidle_").partition("_")[0] for line in fleet.lines)
    return {name: count / GPUS for name, count in counts.most_common()}


def recorded_families(counts: dict[str, int], gpus: int) -> dict[str, float]:
    """Recorded series per GPU, by level and metric. The windows of a metric are added."""
    found: Counter[str] = Counter()
    for name, count in counts.items():
        found[name.rpartition(":")[0]] += count
    return {name: count / gpus for name, count in found.most_common()}


def listed(counts: dict[str, float], least: float = 0.05) -> str:
    shown = ", ".join(f"{name} {count:.1f}" for name, count in counts.items() if count >= least)
    return f"{sum(counts.values()):.1f} ({shown})"


def show_rules(server: dict[str, Any], gpus: int) -> None:
    total, rules = sum(server["recorded"].values()), server["rules"]
    print(f"{server['series']} series in memory, {server['resident_bytes'] / 1e9:.2f} GB")
    print(f"recorded series per GPU: {listed(recorded_families(server['recorded'], gpus))}")
    print(f"recorded series: {total}; written for the day: {server['expected']}")
    print(f"CPU-seconds a minute: {server['cpu_of_data']:.1f} to take in data, ", end="")
    print(f"{server['cpu_of_rules']:.1f} of rules as they were evaluated, ", end="")
    print(f"a sample every {server['seconds_between_samples']:.0f} s")
    print(f"{rules['wall_per_minute']:.2f} s of wall time a minute; {rules['missed']:.0f} evaluations missed")
    show_costs(rules)
    for name, error in rules["failing"].items():
        print(f"  FAILS {name}: {error}")


def show_costs(rules: dict[str, Any]) -> None:
    print(f"rules, at their intervals: {rules['cpu_per_minute']:.2f} s of CPU a minute")
    print(f"of this CPU, {rules['asking_per_minute']:.2f} s is the cost of asking; ", end="")
    print(f"on average, garbage collection included, {rules['mean_cpu_per_minute']:.2f} s; ", end="")
    print(f"allocates {rules['bytes_per_minute'] / 1e6:.1f} MB a minute")
    print(f"{rules['collections']} garbage collections took {1000 * rules['collecting_per_mb']:.2f} ms a MB, ", end="")
    print(f"which is {rules['collecting_per_minute']:.2f} s of CPU a minute for the rules")
    print("   CPU/min      CPU     wall   MB/min")
    for name, group in sorted(rules["groups"].items(), key=lambda item: -item[1]["cpu"] / item[1]["interval"]):
        minute = group["cpu"] * 60 / group["interval"]
        times = f"{minute:8.3f} {group['cpu']:8.3f} {group['wall']:8.3f}"
        print(f"  {times} {group['bytes'] * 60e-6 / group['interval']:8.2f}  {name}, every {group['interval']} s")
    print("dearest rules:")
    for rule in rules["rules"][:DEAREST]:
        print(f"  {rule['cpu_per_minute']:8.3f} {rule['cpu']:8.3f}           {rule['group']}: {rule['rule']}")


def show_queries(window: str, asked: dict[str, Any]) -> None:
    for dashboard, one in {**asked["of"], "all": asked["all"], "all, CPU": asked["cpu"]}.items():
        figures = " ".join(f"{figure} {one.get(figure, 0):7.3f} s" for figure in ("p50", "p95", "max"))
        print(f"  {window:>4} {dashboard:<18} {one['queries']:4} queries  {figures}")
    print(f"       {len(asked['empty'])} empty, {len(asked['failed'])} failed; slowest:")
    for one in asked["slowest"]:
        took, cpu = (" ".join(f"{seconds:.2f}" for seconds in one[of]) for of in ("seconds", "cpu"))
        print(f"       {took} s, CPU {cpu} s  {one['panel']}: {' '.join(one['query'].split())[:160]}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What the dashboards and rules of a fleet cost Prometheus.")
    add = parser.add_argument
    add("--nodes", type=int, default=1024, help="nodes of 8 GPUs (default: %(default)s)")
    add("--per-run", type=int, default=128, help="nodes of a run (default: %(default)s)")
    add("--live", type=float, default=300, help="seconds of live data with rules (default: %(default)s)")
    add("--step", type=int, default=60, help="seconds between raw samples of the day (default: %(default)s)")
    add("--rounds", type=int, default=3, help="times that each query is asked (default: %(default)s)")
    add("--rules-only", action="store_true", help="time the rules, ask no queries")
    add(
        "--rules-of-block", action="store_true", help="time only the rules' expressions, over a block without live data"
    )
    add("--panels-only", action="store_true", help="ask the queries, of a block alone; time no rules")
    add("--days", type=int, default=1, help="with --panels-only, of how many days (default: %(default)s)")
    add("--memory", type=int, default=66, help="with --rules-only, minutes of series in memory (default: %(default)s)")
    add("--prometheus", default="prometheus", help="the binary (default: %(default)s)")
    add("--victoriametrics", nargs="?", const="victoria-metrics", metavar="BINARY", help="ask VictoriaMetrics instead")
    add("--json", metavar="FILE", help="also write the figures as JSON")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit normally, so that the servers end too
    for binary in filter(None, (args.prometheus, args.victoriametrics)):
        if not shutil.which(binary):
            print(f"needs {binary} (Debian's packages prometheus and victoria-metrics have them)", file=sys.stderr)
            return 1
    fleet = Fleet(template(), args.nodes, min(args.per_run, args.nodes))
    start = aligned(time.time() - 2 * RANGES["24h"])
    recorded = first_look(fleet, start, args.prometheus)
    found: dict[str, Any] = {
        "date": date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
        "gpus": args.nodes * GPUS,
        "step_seconds": args.step,
        "raw": raw_families(fleet),
    }
    print(f"{found['date']}, {found['machine']}, {found['gpus']} GPUs")
    print("raw series per GPU:", listed(found["raw"]))
    ways = (
        (args.rules_of_block, measure_rules_of_block),
        (args.rules_only, measure_rules),
        (args.panels_only, measure_panels),
        (args.victoriametrics, measure_victoriametrics),
    )
    how = next((way for asked, way in ways if asked), measure)
    with folder() as scratch:
        found |= how(scratch, fleet, recorded, start, args)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
