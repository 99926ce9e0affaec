"""How a cell of each device is measured: runs of the labs in tests/support, with their own clocks and logs as truth."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accuracy_cells import (
    CPU,
    CUDA,
    CUDA_NAMES,
    DEMO,
    PROFILER,
    SIMULATED,
    TRACEML,
    Cell,
    Finding,
    expected,
    judge,
    judge_sound,
)
from accuracy_peers import trace_ml, trace_profiler

# accuracy_cells has made tests/support importable
from accelerators import lab as simulated_lab
from cudastandin import checks
from cudastandin import lab as cuda_lab
from cudastandin.cases import CASES as CUDA_CASES
from parallel import verdicts
from parallel.lab import Lab as CpuLab
from parallel.spec import LINK
from simdevice import build
from support_forks import Forks

from whyidle.cli.demo.injection import KINDS

ROOT = Path(__file__).resolve().parents[1]
DEMO_SECONDS = 8
Measure = Callable[[Cell], Finding]


class CannotRun(Exception):
    """The machine lacks what a cell needs. The message is a part of a sentence."""


@contextmanager
def cpu() -> Iterator[Measure]:
    """Four ranks with clocks of their own (tests/support/parallel)."""
    with tempfile.TemporaryDirectory() as folder, Forks() as forks, CpuLab(Path(folder), forks) as lab:

        def measure(cell: Cell) -> Finding:
            if cell.fault == LINK and lab.lacks:
                raise CannotRun(f"a slow link {lab.lacks}")
            run = lab.run(cell.job, cell.fault, again=True)
            truth, report = run.truth, run.report
            if truth.family is None:
                return judge_sound(report, verdicts.NOTHING_SHARE)
            slack = verdicts.queued(report) if truth.link else 0.0
            further = [one for one in verdicts.disagreements(report, truth) if one.startswith("the slow link")]
            return judge(report, {truth.family: truth.share}, [truth.family], truth.culprit, slack=slack, further=further)

        yield measure


def _shares(lost: Mapping[str, float], wall: float, calm: float | None, moved: str) -> dict[str, float]:
    """True shares by family, from seconds of all ranks.

    In a pipeline, ``calm`` is what the ranks waited for each other without a fault. That is the pipeline's own. The
    other waits for late ranks are lost to the family ``moved`` that made the rank late, if one did.
    """
    found = dict(lost)
    bubble = min(found["straggler"], calm or 0.0)
    found["pipeline"], found["straggler"] = bubble, found["straggler"] - bubble
    if moved in ("storage", "host"):
        found[moved] += found.pop("straggler")
        found["straggler"] = 0.0
    return {family: seconds / wall for family, seconds in found.items()}


@contextmanager
def simulated() -> Iterator[Measure]:
    """Ranks on the simulated device, and its schedule (tests/support/accelerators)."""
    if lacks := build.lacks():
        raise CannotRun(f"the simulated device {lacks}")
    calm: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, Forks() as forks:

        def run(job: str, fault: str) -> simulated_lab.Case:
            (case,) = simulated_lab.run(forks, [(job, fault)], Path(tempfile.mkdtemp(dir=folder)))
            if (job, fault) == ("pipeline", "none"):
                calm[job] = _simulated_seconds(case)["straggler"]
            return case

        def measure(cell: Cell) -> Finding:
            if cell.job == "pipeline" and cell.fault != "none" and not calm:
                run("pipeline", "none")
            case = run(cell.job, cell.fault)
            culprit, injected = case.culprit or (None, "network" if cell.fault == "slow-link" else "")
            wall = sum(rank.truth.wall for rank in case.ranks)
            shares = _shares(_simulated_seconds(case), wall, calm.get(cell.job), injected)
            return judge(case.report, shares, expected(shares, injected), culprit)

        yield measure


def _simulated_seconds(case: simulated_lab.Case) -> dict[str, float]:
    def total(kinds: Iterable[str]) -> float:
        return sum(getattr(rank.truth, kind) for rank in case.ranks for kind in kinds)

    kinds = {"storage": ("data", "save"), "network": ("transfer",), "straggler": ("late",), "host": ("idle",)}
    found = {family: total(each) for family, each in kinds.items()}
    return found | {"compute": total(["compute"]) - found["host"]}


_CUDA_KINDS = {
    "compute": ("busy", "elsewhere"),
    "storage": ("data", "save"),
    "network": ("transfer",),
    "straggler": ("straggler",),
    "communication": ("other_wait",),
    "host": ("idle", "end"),
}
_CUDA_INJECTED = {"slow-reads": "storage", "save": "storage"}
_CUDA_CHECKS = (
    checks.every_step_is_counted,
    checks.hooks_have_no_fault,
    checks.captures_have_no_event_of_ours,
    checks.nccl_reports_no_error,
)


@contextmanager
def cuda() -> Iterator[Measure]:
    """torch's CUDA build on the stand-in for CUDA's libraries, and its log (tests/support/cudastandin)."""
    if not cuda_lab.python().exists():
        raise CannotRun("torch's CUDA build is not installed: make test-cuda installs it")
    calm: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, cuda_lab.forks() as forks:

        def run(name: str) -> cuda_lab.Outcome:
            outcome = cuda_lab.run(forks, CUDA_CASES[name], Path(tempfile.mkdtemp(dir=folder)))
            if name == "pipeline-none":
                calm["pipeline"] = _cuda_seconds(outcome)["straggler"]
            return outcome

        def measure(cell: Cell) -> Finding:
            case = CUDA_CASES[CUDA_NAMES[cell.job, cell.fault]]
            if cell.job == "pipeline" and cell.fault != "none" and not calm:
                run("pipeline-none")
            outcome = run(case.name)
            wall = sum(rank.wall for rank in outcome.ranks)
            injected = _CUDA_INJECTED.get(cell.fault, "")
            alike = case.plan.forward_ms == CUDA_CASES["pipeline-none"].plan.forward_ms
            shares = _shares(_cuda_seconds(outcome), wall, calm.get(cell.job) if alike else None, injected)
            if cell.job == "pipeline" and not alike:
                shares["pipeline"] = shares["straggler"]  # nothing tells how much of it is the pipeline's own
            further = [sentence for check in _CUDA_CHECKS for sentence in check(outcome)]
            return judge(outcome.report, shares, case.families, case.late, further=further)

        yield measure


def _cuda_seconds(outcome: cuda_lab.Outcome) -> dict[str, float]:
    return {
        family: sum(rank.truth[kind] for rank in outcome.ranks for kind in kinds)
        for family, kinds in _CUDA_KINDS.items()
    }


@contextmanager
def demo() -> Iterator[Measure]:
    """`whyidle demo`, whose job notes what its fault costs."""
    yield _demo


def _demo(cell: Cell) -> Finding:
    command = [sys.executable, "-m", "whyidle.cli.main", "demo", "--json", "--seconds", str(DEMO_SECONDS)]
    command += ["--ranks", cell.job.partition("-")[0]]
    command += [] if cell.fault == "none" else ["--inject", cell.fault]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    report: dict[str, Any] = json.loads(done.stdout)
    kind = KINDS[cell.fault]
    if not kind.family:
        return judge_sound(report, verdicts.NOTHING_SHARE)
    share = report["injected"]["seconds"] / report["rank_seconds"]
    culprit = report["injected"]["ranks"][0] if kind.ranks == "one" else None
    return judge(report, {kind.family: share}, [kind.family], culprit)


@contextmanager
def traceml() -> Iterator[Measure]:
    python = ROOT / ".venv" / "traceml" / "bin" / "python"
    if not python.exists():
        raise CannotRun("TraceML is not installed: make accuracy installs it")
    yield lambda cell: trace_ml(python, cell, DEMO_SECONDS)


@contextmanager
def profiler() -> Iterator[Measure]:
    yield lambda cell: trace_profiler(cell, DEMO_SECONDS)


BENCHES: dict[str, Callable[[], contextlib.AbstractContextManager[Measure]]] = {
    CPU: cpu,
    SIMULATED: simulated,
    CUDA: cuda,
    DEMO: demo,
    TRACEML: traceml,
    PROFILER: profiler,
}


def cores() -> str:
    from importlib.metadata import version

    return f"{os.cpu_count()} shared cores, torch {version('torch').partition('+')[0]}"
