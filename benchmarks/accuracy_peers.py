"""What TraceML and torch.profiler say about the demo's training job, with the cost of its fault by its own notes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accuracy_cells import Cell, Finding

from whyidle.cli.demo.injection import Injection, choose
from whyidle.cli.demo.truth import Trace

JOB = Path(__file__).with_name("accuracy_peer_job.py")
LIMIT_SECONDS = 90


def trace_ml(python: Path, cell: Cell, seconds: int) -> Finding:
    """`traceml run` in its own environment -> its primary diagnosis."""
    with tempfile.TemporaryDirectory() as name:
        folder, ranks = Path(name), _ranks(cell)
        launcher = [str(python.with_name("traceml")), "run", "--logs-dir", str(folder), "--run-name", "said"]
        launcher += ["--nproc-per-node", str(ranks), "--aggregator-port", _port(), "--master-port", _port()]
        truth = _run([*launcher, str(JOB), "--args"], "traceml", cell, seconds, folder)
        said: dict[str, Any] = json.loads((folder / "said" / "final_summary.json").read_text())["primary_diagnosis"]
    return _finding(f"{said['status']}: {said['summary']}", cell, truth)


def trace_profiler(cell: Cell, seconds: int) -> Finding:
    """torch.profiler, and the share of the time in which no operator or collective ran."""
    with tempfile.TemporaryDirectory() as name:
        folder, ranks = Path(name), _ranks(cell)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        launcher += ["--master-port", _port(), str(JOB)]
        truth = _run(launcher, "profiler", cell, seconds, folder)
        told = [json.loads((folder / f"idle-{rank}.json").read_text()) for rank in range(ranks)]
    return _finding(f"idle {', '.join(f'{idle / whole:.0%}' for idle, whole in told)}", cell, truth)


def _ranks(cell: Cell) -> int:
    return int(cell.job.partition("-")[0])


def _port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def _run(launcher: Sequence[str], tool: str, cell: Cell, seconds: int, folder: Path) -> float:
    """Runs the job -> what its fault cost, as a share of the time of all ranks."""
    injection = choose(cell.fault, None, _ranks(cell))
    traces = folder / "traces"
    traces.mkdir()
    words = [tool, str(folder), "--seconds", str(seconds), "--checkpoints", str(folder), "--trace", str(traces)]
    # A launcher that is killed may leave processes behind: they share its session, and would keep a pipe open.
    with (folder / "output").open("w+") as output:
        launched = subprocess.Popen(
            [*launcher, *words, *injection.job_arguments()], stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = launched.wait(LIMIT_SECONDS)
        except BaseException:
            os.killpg(launched.pid, signal.SIGKILL)
            raise
    if status:
        raise RuntimeError((folder / "output").read_text()[-2000:])
    return _truth(injection, traces)


def _truth(injection: Injection, traces: Path) -> float:
    """The time of a rank is from its first wait for a batch to its last note."""
    unlimited = Trace(str(traces), {})
    begun = {rank: unlimited.intervals("waits", rank)[0][0] for rank in range(injection.world)}
    ended = {
        rank: max(end for name in ("waits", "injected") for _, end in unlimited.intervals(name, rank))
        for rank in range(injection.world)
    }
    lost = injection.kind.truth(Trace(str(traces), begun), injection.ranks, injection.world)
    return lost / (sum(ended[rank] - begun[rank] for rank in begun) / 1e9)


def _finding(told: str, cell: Cell, share: float) -> Finding:
    family = choose(cell.fault, None, _ranks(cell)).kind.family
    return Finding(told, family=family, share=share if family else None)
