"""Advice against truth: a run with a fault is advised, the change is made, and both are trained.

    .venv/bin/python benchmarks/advice.py [--only TEXT ...] [--json FILE]

Each setting is trained twice, in turns. The advice is that for the first faulty run, and its setting is used
unchanged. The truth is the time of a batch in both changed runs against that in both faulty ones, by the job's own
clock. Ranks are in network namespaces: root, ip and tc are needed, for slow reads also libfuse3 and a C compiler. What
a machine lacks is left out, and the output says so. These are not tests: nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))  # the slow file system

from advice_device import Launches, Pipeline
from advice_job import Job, make_files
from advice_kills import Killed
from advice_outcome import Outcome
from ranks import Failed
from support_bottlenecks_disks import missing as lacks_fuse
from support_bottlenecks_disks import slow_folder
from whatif_network import missing, network

from whyidle.advisor.advice.case import case_of
from whyidle.advisor.advice.rule import Advice
from whyidle.advisor.advice.table import advise
from whyidle.ledger.directory import read_directory, run_of
from whyidle.verdict.accounts import account
from whyidle.verdict.enough import NO_LIMITS
from whyidle.verdict.gaps import Idle

READ_MS = 10
RANKS = 4
"""Of its network namespaces."""
SLOW, FAST, DISK = "slow", "fast", "disk"
"""In place of a folder of files."""
AnyJob = Job | Pipeline | Launches | Killed


@dataclass(frozen=True)
class Case:
    rule: str
    fault: str
    slow: AnyJob
    apply: Callable[[Any, dict[str, Any]], AnyJob]
    """The run with the advised settings."""


def _set(**changes: Any) -> Callable[[Any, dict[str, Any]], AnyJob]:
    return lambda job, settings: replace(job, **changes)


ONE, TWO = Job(), Job(ranks=2)
DECODING = replace(ONE, steps=200, compute=0.0, workers=3, decode=0.02)
CASES = (
    Case(
        "cpu.limit",
        "a quota of 0.4 CPU, a worker that decodes for 20 ms",
        replace(DECODING, workers=1, quota=0.4),
        lambda job, settings: replace(job, quota=settings["cpus"]),
    ),
    Case(
        "cpu.limit",
        "3 workers that decode for 20 ms may use 1 CPU of 2",
        replace(DECODING, cpus=1),
        lambda job, settings: replace(job, cpus=int(settings["cpus"])),
    ),
    Case(
        "cpu.limit",
        "the loop itself decodes for 20 ms, then works for 10 ms, on 1 CPU of 2",
        replace(DECODING, workers=0, late=(0.01,), cpus=1),
        lambda job, settings: replace(job, cpus=int(settings["cpus"]), workers=settings["num_workers"]),
    ),
    Case(
        "cpu.affinity",
        "the same, but only the workers may use 1 CPU",
        replace(DECODING, worker_cpu=True),
        _set(worker_cpu=False),
    ),
    Case(
        "cpu.others",
        "3 workers that decode for 20 ms on 2 CPUs, beside 4 other programs",
        replace(DECODING, others=4),
        _set(others=0),
    ),
    Case(
        "cpu.threads",
        "2 ranks with 8 threads each on 2 CPUs",
        replace(TWO, compute=0.0, threads=8, width=1024, layers=3, rows=256),
        lambda job, settings: replace(job, threads=settings["OMP_NUM_THREADS"]),
    ),
    Case(
        "memory.limit",
        "a worker reads 600 MB of files in each epoch; the control group has 700 MB",
        replace(
            ONE,
            steps=400,
            compute=0.0,
            workers=1,
            epoch=20,
            workers_stay=True,
            folder=DISK,
            large=100,
            memory=700 << 20,
        ),
        lambda job, settings: replace(job, memory=settings["memory_bytes"]),
    ),
    Case(
        "data.workers",
        "one worker, reads of 80 ms",
        replace(ONE, workers=1, read=0.08),
        lambda job, settings: replace(job, workers=settings["num_workers"]),
    ),
    Case(
        "data.prefetch",
        "every 25th read takes 400 ms longer",
        replace(ONE, steps=120, workers=2, spike=0.4),
        lambda job, settings: replace(job, prefetch=settings["prefetch_factor"]),
    ),
    Case(
        "data.first",
        "an epoch of 40 batches begins with 100 reads of 10 ms that fill a buffer",
        replace(ONE, steps=200, workers=1, epoch=40, workers_stay=True, read=0.01, buffer=100),
        _set(buffer=10),
    ),
    Case(
        "data.skip",
        "the loop skips 100 batches of 20 ms after a restart",
        replace(ONE, steps=60, workers=1, read=0.02, skip=100, skip_counts=True),
        _set(skip=0),
    ),
    Case("data.decode", "a worker decodes for 60 ms", replace(ONE, workers=1, decode=0.06), _set(decode=0.0)),
    Case(
        "data.cache",
        "a worker reads 16 files, 10 ms each",
        replace(ONE, workers=1, folder=SLOW),
        _set(folder=FAST),
    ),
    Case(
        "data.shards",
        "the same",
        replace(ONE, workers=1, folder=SLOW),
        _set(sharded_files=True),
    ),
    Case(
        "data.ahead",
        "the loop reads each batch itself, 30 ms, and computes for 40",
        replace(ONE, steps=160, by_hand=True, read=0.03, late=(0.04,), compute=0.0),
        _set(by_hand=False, workers=1),
    ),
    Case(
        "data.ahead",
        "one thread makes the batches ahead, 60 ms, and the loop computes for 40",
        replace(ONE, steps=160, by_hand=True, makers=1, read=0.06, late=(0.04,), compute=0.0),
        _set(makers=2),
    ),
    Case(
        "data.uneven",
        "two workers read for 60 ms, but only one has a shard; the loop computes for 30",
        replace(ONE, steps=160, workers=2, shards=1, read=0.06),
        _set(shards=2),
    ),
    Case(
        "data.handoff",
        "batches of 100 small tensors",
        replace(ONE, workers=2, pieces=100, compute=0.06),
        _set(stacked=True),
    ),
    Case(
        "data.start",
        "a spawned worker for each epoch of 40 batches",
        replace(ONE, steps=200, workers=1, epoch=40),
        _set(workers_stay=True),
    ),
    Case(
        "host.gc", "gc.collect() in each step, 200,000 objects", replace(ONE, steps=30, collect=True), _set(freeze=True)
    ),
    Case(
        "host.compile",
        "40 shapes of batches, compiled one by one",
        replace(ONE, shapes=40),
        _set(dynamic=True),
    ),
    Case(
        "host.gc",
        "2 ranks gather 20,000 Python objects from each other in each step",
        replace(TWO, late=(0.03, 0.03), compute=0.0, objects=20_000),
        _set(freeze=True),
    ),
    Case(
        "host.blocked",
        "a call in the loop takes 30 ms",
        replace(ONE, late=(0.03,), compute=0.0, blocked=0.03),
        _set(in_thread=True),
    ),
    Case(
        "host.lock",
        "a thread computes in Python for 20 ms of 40, the loop for 20 ms of a step",
        replace(ONE, steps=160, late=(0.02,), compute=0.0, beside=0.02, width=512, rows=64, layers=6),
        _set(in_process=True),
    ),
    Case(
        "host.code",
        "Python code takes 15 ms between two steps of 30 ms",
        replace(ONE, steps=1000, late=(0.03,), compute=0.0, count=0.015),
        _set(count_every=10),
    ),
    Case(
        "host.logging",
        "a logger takes 15 ms of a step, the loop computes for 30",
        replace(ONE, steps=200, late=(0.03,), compute=0.0, log=0.015),
        _set(in_thread=True),
    ),
    Case(
        "host.logging",
        "a logger takes 15 ms of a step on one of two ranks, the loop computes for 20",
        replace(TWO, steps=200, late=(0.02, 0.02), compute=0.0, log=0.015, rank_0_logs=True),
        _set(in_thread=True),
    ),
    Case(
        "evaluation.less",
        "an evaluation of 0.2 s each 10 steps of 30 ms",
        replace(ONE, steps=120, late=(0.03,), compute=0.0, evaluate_every=10, evaluate=0.2),
        lambda job, settings: replace(job, evaluate_every=settings["evaluation_steps"]),
    ),
    Case(
        "evaluation.ranks",
        "rank 0 of 2 evaluates for 0.3 s each 10 steps of 30 ms",
        replace(TWO, steps=120, late=(0.03, 0.03), compute=0.0, evaluate_every=10, evaluate=0.3),
        _set(all_evaluate=True),
    ),
    Case(
        "checkpoint.async",
        "a save of 4 MB in 200 ms each 5 steps",
        replace(ONE, save_every=5, save_bytes=4_000_000),
        _set(asynchronous=True),
    ),
    Case(
        "checkpoint.sharded",
        "rank 0 of 2 saves 8 MB in 400 ms each 5 steps",
        replace(TWO, save_every=5, save_bytes=8_000_000),
        _set(all_save=True),
    ),
    Case(
        "network.link",
        "4.2 MB of gradients at 200 Mbit/s over eth0, beside an idle eth1",
        replace(TWO, steps=80, mbit=200, width=512, layers=4),
        lambda job, settings: replace(job, interface=settings["GLOO_SOCKET_IFNAME"]),
    ),
    Case(
        "network.limit",
        "4.2 MB of gradients at 200 Mbit/s over eth0",
        replace(TWO, steps=80, mbit=200, width=512, layers=4),
        _set(mbit=0),
    ),
    Case(
        "network.no_sync",
        "4 batches are accumulated, and 1 MB of gradients is reduced at 100 Mbit/s in each backward pass",
        replace(TWO, steps=96, mbit=100, width=512, accumulate=4, synced=True),
        _set(synced=False),
    ),
    Case(
        "network.accumulation",
        "1 MB of gradients at 100 Mbit/s",
        replace(TWO, steps=96, mbit=100, width=512),
        lambda job, settings: replace(job, accumulate=settings["accumulation_steps"]),
    ),
    Case(
        "network.buckets",
        "4.2 MB of gradients at 400 Mbit/s, 4 layers with 40 ms of backward",
        replace(TWO, mbit=400, width=512, layers=4, backward=0.04),
        lambda job, settings: replace(job, bucket_mb=settings["bucket_cap_mb"]),
    ),
    Case(
        "network.coalesce",
        "80 tensors of 4 kB reduced one by one",
        replace(TWO, tensors_apart=80),
        _set(flat=True),
    ),
    Case(
        "network.hierarchy",
        "FSDP of 2 MB on 2 nodes with 2 ranks each, 100 Mbit/s between nodes",
        Job(ranks=4, nodes=2, mbit=100, width=512, layers=2, sharding="flat"),
        _set(sharding="hybrid"),
    ),
    Case(
        "network.jumbo",
        "1 MB of gradients at 20 Mbit/s, an MTU of 1500",
        replace(TWO, mbit=20, width=512),
        lambda job, settings: replace(job, mtu=settings["mtu"]),
    ),
    Case(
        "straggler.drain",
        "rank 1 computes for 60 ms longer",
        replace(TWO, late=(0.0, 0.06)),
        _set(late=(0.0, 0.0)),
    ),
    Case(
        "straggler.uneven",
        "ranks compute for 80 ms longer in turns",
        replace(TWO, turns=0.08),
        _set(turns=0.0, late=(0.04, 0.04)),
    ),
    Case(
        "pipeline.balance",
        "one of 4 stages takes 150 ms, the others 60",
        Job(ranks=4, steps=30, stages=(0.06, 0.15, 0.06, 0.06)),
        _set(stages=(0.0825,) * 4),
    ),
    Case(
        "pipeline.microbatches",
        "1F1B on 4 simulated devices, 4 microbatches of 25 + 50 ms",
        Pipeline(),
        lambda job, settings: replace(job, microbatches=settings["microbatches"]),
    ),
    Case(
        "pipeline.interleave",
        "the same",
        Pipeline(),
        lambda job, settings: replace(job, chunks=settings["stages_per_rank"]),
    ),
    Case(
        "host.launch",
        "60 kernels of 0.5 ms, launched 1.5 ms apart, on a simulated device",
        Launches(),
        _set(graph=True),
    ),
    Case(
        "checkpoint.interval",
        "a save of 0.2 s each 5 steps of 30 ms; killed every 6 s on average",
        Killed(save_every=5),
        lambda job, settings: replace(job, save_every=settings["save_every_steps"]),
    ),
    Case(
        "checkpoint.interval",
        "the same, a save each 200 steps",
        Killed(save_every=200),
        lambda job, settings: replace(job, save_every=settings["save_every_steps"]),
    ),
)


class Bench:
    """Trains jobs, each in a separate folder."""

    def __init__(self, folder: Path, names: tuple[str, ...], files: dict[str, str]):
        self.folder, self.names, self.files = folder, names, files
        self._runs = 0

    def train(self, job: AnyJob) -> Outcome:
        self._runs += 1
        folder = self.folder / str(self._runs)
        folder.mkdir()
        if isinstance(job, Job):
            job = replace(job, folder=self.files.get(job.folder, ""))
        return job.run(folder, self.names)


def advised(outcome: Outcome) -> list[Advice]:
    ledgers, problems = read_directory(str(outcome.ledgers), steps=True)
    assert not problems, problems
    run, now = run_of(ledgers[0]), time.monotonic_ns()
    idle: dict[int, Idle] = {}
    if outcome.busy is not None:  # as an agent does with what the GPU's counters say
        [rank] = account(run, ledgers, now).ranks
        idle = {rank.rank: Idle(max(0.0, rank.seconds["compute"] - outcome.busy))}
    return advise(case_of(run, ledgers, now, outcome.counters, idle, least=NO_LIMITS))


def compare(case: Case, bench: Bench) -> dict[str, Any]:
    slow = [bench.train(case.slow)]
    said = advised(slow[0])
    one = next((one for one in said if one.id == case.rule), None)
    row: dict[str, Any] = {"rule": case.rule, "fault": case.fault, "slow_ms": 1e3 * slow[0].batch_seconds}
    if one is None:
        return row | {"change": None, "others": [each.id for each in said]}
    job = case.apply(case.slow, dict(one.settings))
    fast = [bench.train(job)]
    slow.append(bench.train(case.slow))
    fast.append(bench.train(job))
    before, after = (mean(each.batch_seconds for each in runs) for runs in (slow, fast))
    gain = 1 - after / before
    return row | {
        "change": one.change,
        "place": said.index(one) + 1,
        "predicted": one.gain.share,
        "bounds": [one.gain.least, one.gain.most],
        "slow_ms": 1e3 * before,
        "fast_ms": 1e3 * after,
        "measured": gain,
        "within": gain > 0 and 0.5 <= one.gain.share / gain <= 2,
        "in_bounds": one.gain.least <= gain <= one.gain.most,
        "holds": gain >= one.gain.least / 2,
    }


def _reads(job: AnyJob) -> bool:
    return isinstance(job, Job) and job.folder == SLOW


HEADINGS = (
    "rule",
    "fault",
    "change",
    "time of a batch before",
    "after",
    "predicted gain",
    "bounds",
    "measured",
    "in the bounds",
    "within 2×",
)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{' --- |' * len(HEADINGS)}"]
    for row in rows:
        if row["change"] is None:
            lines.append(
                f"| `{row['rule']}` | {row['fault']} | it says nothing | {row['slow_ms']:.0f} ms | | | | | no | no |"
            )
            continue
        lines.append(
            f"| `{row['rule']}` | {row['fault']} | {row['change']} | {row['slow_ms']:.0f} ms | {row['fast_ms']:.0f} ms"
            f" | {100 * row['predicted']:.0f} % | {100 * row['bounds'][0]:.0f} to {100 * row['bounds'][1]:.0f} %"
            f" | {100 * row['measured']:.0f} % | {_where(row)} | {'yes' if row['within'] else 'no'} |"
        )
    return "\n".join(lines)


def _where(row: dict[str, Any]) -> str:
    """Whether the measured gain is in the bounds. A rule does not hold if it is less than half of the lower one."""
    if row["in_bounds"]:
        return "yes"
    return ("below" if row["holds"] else "far below") if row["measured"] < row["bounds"][0] else "above"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TEXT", help="cases whose rule or fault has this in it"
    )
    parser.add_argument("--json", type=Path, help="where to write all figures")
    args = parser.parse_args()
    if lacking := missing():
        print(f"nothing to compare: this machine {lacking}")
        return
    no_fuse = lacks_fuse()
    chosen = [case for text in args.only for case in CASES if text in case.rule or text in case.fault]
    cases = [case for case in dict.fromkeys(chosen) if not (_reads(case.slow) and no_fuse)]
    if len(cases) < len(dict.fromkeys(chosen)):
        print(f"without slow reads: this machine {no_fuse}")
    rows = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the children and the network go, too
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whyidle-advice-", dir="/dev/shm")))
        (folder / FAST).mkdir()
        make_files(folder / FAST)
        files = {FAST: str(folder / FAST)}
        if any(_reads(case.slow) for case in cases):
            slow = stack.enter_context(slow_folder(folder / FAST, folder / SLOW, read_ms=READ_MS, cached=True))
            files[SLOW] = str(slow)
        files[DISK] = stack.enter_context(tempfile.TemporaryDirectory(prefix="whyidle-advice-"))
        bench = Bench(folder, stack.enter_context(network(RANKS)), files)
        for case in cases:
            try:
                rows.append(compare(case, bench))
            except Failed as error:
                print(f"{case.rule}: {error}", file=sys.stderr, flush=True)
                continue
            print(table(rows[-1:]).splitlines()[-1], flush=True)
            if rows[-1]["change"] is None:
                print(f"  it says: {', '.join(rows[-1]['others']) or 'nothing'}", flush=True)
    print(f"\n{table(rows)}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
