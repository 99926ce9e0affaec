"""`whyidle bench network`: measures collectives and pairs of nodes, under torchrun or with ranks that it starts
itself."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys

from ....advisor.bench.network.operations import OPERATIONS
from ....ledger.directory import ledger_dir
from ...durations import some_time
from ...quantities import ranks, rate
from . import local, text
from .sizes import operations, size, sizes
from .start import BenchError, end_at_signals, started

BACKENDS = ("gloo", "nccl")
DTYPES = ("float32", "float16", "bfloat16")
CHECKS = ("small", "always", "never")
PAIRS = ("at-once", "one-at-a-time", "none")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    start = parser.add_argument_group(
        "ranks", "Start it like a training: torchrun --nproc-per-node 8 -m whyidle bench network. Or use --ranks."
    )
    start.add_argument("--ranks", type=ranks, metavar="N", help="start N ranks on this machine, without torchrun")
    start.add_argument("--backend", choices=BACKENDS, help="default: nccl on GPUs, otherwise gloo")
    start.add_argument(
        "--join-timeout",
        type=some_time,
        default="60s",
        metavar="TIME",
        help="how long to wait for all ranks (default: 60s)",
    )
    start.add_argument(
        "--timeout",
        type=some_time,
        default="60s",
        metavar="TIME",
        help="longest time for one collective (default: 60s)",
    )
    what = parser.add_argument_group(
        "collectives", "Write sizes as 64kB, 25MiB or 4MB. In 64kB..64MB, each size is four times the one before."
    )
    what.add_argument(
        "--operations", type=operations, default=",".join(OPERATIONS), metavar="LIST", help="default: %(default)s"
    )
    what.add_argument("--sizes", type=sizes, default="64kB..16MB", metavar="LIST", help="default: %(default)s")
    what.add_argument("--dtype", choices=DTYPES, default="float32", help="default: %(default)s")
    what.add_argument(
        "--size-time",
        type=some_time,
        default="1s",
        metavar="TIME",
        help="time for the repetitions of one size (default: 1s)",
    )
    what.add_argument(
        "--time",
        type=some_time,
        default="2m",
        metavar="TIME",
        help="start no further size after this time (default: 2m)",
    )
    what.add_argument("--check", choices=CHECKS, default="small", help="check results (default: up to 4 MiB)")
    pairs = parser.add_argument_group("pairs of nodes", "They show which link or node is slow.")
    pairs.add_argument(
        "--pairs", choices=PAIRS, default="at-once", help="default: at-once, each node in one pair at a time"
    )
    pairs.add_argument(
        "--pair-time", type=some_time, default="500ms", metavar="TIME", help="time for one pair (default: 500ms)"
    )
    pairs.add_argument(
        "--pairs-time", type=some_time, default="1m", metavar="TIME", help="time for all pairs (default: 1m)"
    )
    pairs.add_argument(
        "--no-tools", action="store_true", help="do not run iperf3 and ib_write_bw, even if they are installed"
    )
    compared = parser.add_argument_group("what to compare with")
    compared.add_argument(
        "--link", type=rate, metavar="RATE", help="link rate of a node, each way (default: as adapters report it)"
    )
    compared.add_argument("--run", dest="run_name", metavar="RUN", help="compare with the collectives of this run")
    compared.add_argument(
        "--bucket",
        type=size,
        default="25MiB",
        metavar="SIZE",
        help="size of DDP's gradient buckets (default: 25MiB, as in torch)",
    )
    compared.add_argument("--dir", default=ledger_dir(), help="where the run's ledgers are (default: %(default)s)")
    compared.add_argument("--owner", help="owner of the run, if several owners have a run with this name")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    """Exit status 0; 1 if ranks are missing or lost; 2 if the bench cannot start; 128 + number of a signal."""
    try:
        start = started(os.environ)
        if importlib.util.find_spec("torch") is None:
            raise BenchError("torch is not installed here: run this in the environment of your training", 2)
        if start is None:
            return _start(args)
        if args.ranks not in (None, start.size):
            raise BenchError(f"--ranks {args.ranks} does not match the launcher, which started {start.size} ranks", 2)
    except BenchError as error:
        _say(str(error))
        return error.status
    end_at_signals(_say if start.rank == 0 else lambda _: None)
    from .rank import end
    from .rank import run as run_rank

    status = 0
    try:
        report = run_rank(args, start)
        if start.rank == 0:
            print(json.dumps(report, indent=2) if args.json else text.render(report))
    except BenchError as error:
        status = error.status
        if start.local_rank == 0:
            _say(str(error) if start.rank == 0 else f"rank {start.rank}: {error}")
    end(status)
    return status


def _start(args: argparse.Namespace) -> int:
    if args.ranks is None:
        raise BenchError(
            "RANK is not set, so no launcher started this: write torchrun --nproc-per-node 2 -m whyidle bench network"
            ", or --ranks 2 for ranks on this machine",
            2,
        )
    if args.ranks < 2:
        raise BenchError("one rank has no rank to send to: start two or more", 2)
    return local.run(["whyidle", *sys.argv[1:]], args.ranks, _say)


def _say(sentence: str) -> None:
    print(f"whyidle bench network: {sentence}", file=sys.stderr, flush=True)
