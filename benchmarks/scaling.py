"""Finds the losses again that a simulated run of 128 nodes has, compared with one node.

    python benchmarks/scaling.py [--nodes N] [--steps N] [--save DIR] [--json FILE]

Each node has one rank. In a step, a rank waits for its batch, computes, runs its loop's own code, and then reduces its
gradients with all others. The ledgers are real: their writer and their accounts are those of the hooks, and they have
the waits as a rank measures them, so that the report has to split these. Five losses are injected:

    network     a ring all-reduce: 2 (n - 1) / n of the gradients over the link, and a latency for each of its hops
    storage     all nodes read from one file server, so that reads take longer the more nodes there are
    straggler   one node computes more slowly
    cpu         two nodes decode their batches on busy cores
    host        in each step, some node's loop pauses

There is a run with each of them alone, and runs with all of them on growing numbers of nodes. The table compares what
`whyidle compare` says a family has taken with the truth. With one loss alone, the truth is how much longer a step takes
than on as many nodes without it. With all of them, it is the loss's Shapley value: what adding it costs, on average
over all orders in which the losses can be added. These values add up to what all of them cost. Ranks also differ by
chance: what that costs is in the row `others`.

This is not a test: nothing passes or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from itertools import combinations
from math import factorial
from pathlib import Path
from random import Random
from typing import Any

from whyidle.advisor.compare.scaling import Scaling, scaling
from whyidle.cli.scaling import scaling_notes, scaling_tables
from whyidle.cli.tables import aligned, padded
from whyidle.ledger.causes import CAUSE, PHASE
from whyidle.ledger.directory import read_directory, run_of
from whyidle.ledger.layout import SEQUENCE, WORD_AT
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks.books import Books
from whyidle.verdict.report import build_report

LOSSES: tuple[str, ...] = ("network", "storage", "straggler", "cpu", "host")
SAMPLES = 32
"""Of a rank in a step."""
NS = 1_000_000_000
COMPUTE, READ, HOST, JITTER = 0.100, 0.003, 0.004, 0.005
"""Seconds of a step on one node, and the deviation of its compute, as a share."""
GRADIENTS, BANDWIDTH, LATENCY = 4.2e8, 1e11, 8e-6
"""Bytes of the gradients, bytes per second of a link, and seconds of each hop of the ring."""
SERVED = 60
"""The nodes that the file server can serve without a delay. Beyond that, reads take longer in proportion."""
SLOW, SLOW_NODES = 0.05, 1
BUSY, BUSY_NODES = 0.012, 2
PAUSE = 0.006
Parts = tuple[float, float, float, float, float]
"""Seconds of a rank in a step: reads, decoding, compute, the loop's own code, and the transfer."""


def step(nodes: int, number: int, losses: Collection[str]) -> list[Parts]:
    """The seconds of each rank in one step. The draws are the same whatever the losses are."""
    random = Random(number)
    paused = random.randrange(nodes)
    transfer = 0.0
    if nodes > 1 and "network" in losses:
        transfer = 2 * (nodes - 1) / nodes * GRADIENTS / BANDWIDTH + 2 * (nodes - 1) * LATENCY
    found: list[Parts] = []
    for node in range(nodes):
        compute = COMPUTE * (1 + JITTER * random.gauss(0, 1))
        spread = random.uniform(0.8, 1.2)
        delay = max(0.0, nodes / SERVED - 1) * 2 * READ * spread if "storage" in losses else 0.0
        if "straggler" in losses and nodes > 1 and node < SLOW_NODES:
            compute *= 1 + SLOW
        busy = "cpu" in losses and nodes - BUSY_NODES <= node and nodes > BUSY_NODES
        pause = PAUSE if "host" in losses and nodes > 1 and node == paused else 0.0
        found.append((READ + delay, BUSY if busy else 0.0, compute, HOST + pause, transfer))
    return found


def step_seconds(nodes: int, steps: int, losses: Collection[str]) -> float:
    """The mean of all steps."""
    return sum(max(map(sum, step(nodes, number, losses))) for number in range(steps)) / steps


def shapley(nodes: int, steps: int) -> dict[str, float]:
    """Loss -> its part of what a step takes longer than without any loss, in seconds."""
    seconds = {
        frozenset(chosen): step_seconds(nodes, steps, chosen)
        for count in range(len(LOSSES) + 1)
        for chosen in combinations(LOSSES, count)
    }
    found = dict.fromkeys(LOSSES, 0.0)
    for chosen, without in seconds.items():
        weight = factorial(len(chosen)) * factorial(len(LOSSES) - len(chosen) - 1) if len(chosen) < len(LOSSES) else 0
        for loss in set(LOSSES) - chosen:
            found[loss] += weight / factorial(len(LOSSES)) * (seconds[chosen | {loss}] - without)
    return found


def write(folder: Path, nodes: int, steps: int, losses: Collection[str]) -> None:
    """The ledgers of a run."""
    timeline = [step(nodes, number, losses) for number in range(steps)]
    for rank in range(nodes):
        _write_rank(folder, rank, nodes, timeline)


def _write_rank(folder: Path, rank: int, nodes: int, timeline: Sequence[Sequence[Parts]]) -> None:
    start = time.monotonic_ns() - 1000 * NS
    numbers = {"rank": rank, "world_size": nodes, "local_rank": 0, "device_index": -1, "pid": os.getpid()}
    numbers |= {"pid_start_ticks": 1, "start_ns": start, "checkpoint_step": -1, "loader_workers": 4}
    strings = {"run": "simulated", "owner": "bench", "node": f"node-{rank:03d}", "device": "cpu", "uuid": ""}
    writer = LedgerWriter(str(folder), strings, numbers)
    words, books = writer.words, Books(writer.words)
    words[SEQUENCE] += 1
    writer.set_string("group0", "world")
    words[WORD_AT["slot_key"][0]], words[WORD_AT["slot_size"][0]] = 7, nodes
    books.hold(0, (), whole=True)
    now = start
    books.open_window(now)
    for ranks in timeline:
        read, decode, compute, host, _ = (round(NS * part) for part in ranks[rank])
        end = now + round(NS * max(map(sum, ranks)))
        books.charge(PHASE["data"], read + decode, ((CAUSE["data_cpu"], decode), (CAUSE["data_read"], read)))
        books.charge(PHASE["compute"], compute)
        books.charge(PHASE["host"], host)
        waited = max(0, end - now - read - decode - compute - host)
        if nodes > 1:
            books.charge_wait(0, waited, end_ns=end)
        now = end
        words[WORD_AT["samples"][0]] += SAMPLES
        books.close_step(now)
    books.end()
    words[WORD_AT["phase_since_ns"][0]] = words[WORD_AT["accounted_ns"][0]] = now
    words[SEQUENCE] += 1
    writer.close()


def reported(nodes: int, steps: int, losses: Collection[str]) -> dict[str, Any]:
    """The report of a simulated run."""
    with tempfile.TemporaryDirectory(prefix="whyidle-scaling-", dir="/dev/shm") as folder:
        write(Path(folder), nodes, steps, losses)
        ledgers, problems = read_directory(folder, steps=True)
        return build_report(run_of(ledgers[0]), ledgers, time.monotonic_ns(), problems)


def parts(found: dict[str, Scaling], nodes: int, steps: int) -> dict[str, tuple[float, ...]]:
    """For each loss: what is missing because of it alone, and with all, as (truth, found, truth, found)."""
    every, whole = found["all"], shapley(nodes, steps)
    without, of_all = step_seconds(nodes, steps, ()), step_seconds(nodes, steps, LOSSES)
    lines: dict[str, tuple[float, ...]] = {}
    for loss in LOSSES:
        alone = 1 - without / step_seconds(nodes, steps, (loss,))
        lines[loss] = alone, found[loss].missing.get(loss, 0.0), whole[loss] / of_all, every.missing.get(loss, 0.0)
    others = sum(part for family, part in every.missing.items() if family not in LOSSES)
    lines["others"] = 1 - every.efficiency - sum(whole.values()) / of_all, others
    lines["in all"] = 1 - every.efficiency, sum(every.missing.values())
    return lines


def rows(lines: dict[str, tuple[float, ...]]) -> list[list[str]]:
    cells = {name: [f"{100 * number + 0.0:.1f} %" for number in numbers] for name, numbers in lines.items()}
    header = ["", "alone: truth", "found", "all: truth", "found"]
    return [header, *([name, *[""] * (4 - len(each)), *each] for name, each in cells.items())]


def main() -> int:
    parser = argparse.ArgumentParser(description="Finds injected losses of a simulated run of many nodes again.")
    parser.add_argument("--nodes", type=int, default=128, help="nodes of the largest run (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="steps of each run, at most 500 (default: %(default)s)")
    parser.add_argument("--save", metavar="DIR", help="write the reports here, for `whyidle compare`")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    args = parser.parse_args()
    began = time.perf_counter()
    sizes = sorted({1, 8, 32, args.nodes})
    reports = {f"{size}-node{'s' * (size > 1)}": reported(size, args.steps, LOSSES) for size in sizes}
    alone = {loss: reported(args.nodes, args.steps, (loss,)) for loss in LOSSES}
    one = ("1-node", reports["1-node"])
    named = scaling(list(reports.items()))
    found = {loss: scaling([one, (loss, report)])[1] for loss, report in alone.items()}
    found["all"] = named[-1]
    lines = parts(found, args.nodes, args.steps)
    for table in scaling_tables(named):
        print("\n".join([table.title, *aligned(padded(table), left=1), ""]))
    print("\n".join(scaling_notes(named)), "\n")
    print("\n".join(aligned(rows(lines), left=1)))
    print(f"{time.perf_counter() - began:.0f} s")
    if args.save:
        folder = Path(args.save)
        folder.mkdir(parents=True, exist_ok=True)
        for name, report in reports.items():
            (folder / f"{name}.json").write_text(json.dumps(report))
    if args.json:
        figures = {"parts": lines, "scaling": [vars_of(one) for one in named]}
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def vars_of(one: Scaling) -> dict[str, Any]:
    return {name: getattr(one, name) for name in ("name", "world_size", "efficiency", "per_doubling", "missing")}


if __name__ == "__main__":
    sys.exit(main())
