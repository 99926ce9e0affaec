"""How a cell of each device is measured: runs of the labs in tests/support, with their own clocks and logs as truth."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

# accuracy_cells has made tests/support importable
from accelerators import lab as simulated_lab
from accelerators.truth import Truth
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
from cudastandin import checks
from cudastandin import lab as cuda_lab
from cudastandin.cases import CASES as CUDA_CASES
from cudastandin.cases import Case
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
            slack = verdicts.queued(report, truth.link)
            further = [one for one in verdicts.disagreements(report, truth) if one.startswith("the slow link")]
            return judge(
                report, {truth.family: truth.share}, [truth.family], truth.culprit, slack=slack, further=further
            )

        yield measure


def _shares(ranks: Sequence[Mapping[str, float]], wall: float, calm: Sequence[float], moved: str) -> dict[str, float]:
    """True shares of the time of all ranks, from each rank's seconds by family.

    In a pipeline, ``calm`` is for how long each rank waits for the others without a fault. As much of its waits is the
    pipeline's own. The other waits for late ranks are lost to the family ``moved`` that made a rank late, if it did. A
    slow link does so only in a pipeline: elsewhere, the ranks wait in the transfer itself.
    """
    lost = {family: sum(rank[family] for rank in ranks) for family in ranks[0]}
    lost["pipeline"] = sum(min(rank["straggler"], own) for rank, own in zip(ranks, calm, strict=True)) if calm else 0.0
    behind = lost["straggler"] - lost["pipeline"]
    lost["straggler"] = 0.0
    delays = {"storage", "host", *(["network"] if calm else [])}
    lost[moved if moved in delays else "straggler"] += behind
    return {family: seconds / wall for family, seconds in lost.items()}


def _alike(ranks: Sequence[Mapping[str, float]], usual: Sequence[float], culprit: int | None) -> float:
    """For how many seconds the ranks without a fault wait for others as they do without a fault, where hosts that share
    cores are late now and then. Nothing tells whether the culprit made them wait in these."""
    waits = enumerate(zip(ranks, usual, strict=True) if usual else ())
    return sum(min(rank["straggler"], own) for number, (rank, own) in waits if number != culprit)


@contextmanager
def simulated() -> Iterator[Measure]:
    """Ranks on the simulated device, and its schedule (tests/support/accelerators)."""
    if lacks := build.lacks():
        raise CannotRun(f"the simulated device {lacks}")
    with tempfile.TemporaryDirectory() as folder, Forks() as forks:

        def run(job: str, fault: str) -> simulated_lab.Case:
            (case,) = simulated_lab.run(forks, [(job, fault)], Path(tempfile.mkdtemp(dir=folder)))
            return case

        @functools.cache
        def calm(job: str) -> list[float]:
            return [rank.truth.late for rank in run(job, "none").ranks]

        def measure(cell: Cell) -> Finding:
            case = run(cell.job, cell.fault)
            culprit, injected = case.culprit or (None, "network" if cell.fault == "slow-link" else "")
            wall = sum(rank.truth.wall for rank in case.ranks)
            ranks = [_of_simulated(rank.truth) for rank in case.ranks]
            bubble = calm(cell.job) if cell.job == "pipeline" else []
            shares = _shares(ranks, wall, bubble, injected)
            usual = calm(cell.job) if cell.fault and culprit is not None and not bubble else []
            slack = _alike(ranks, usual, culprit) / wall
            return judge(case.report, shares, expected(shares, injected), culprit, slack=slack)

        yield measure


def _of_simulated(truth: Truth) -> dict[str, float]:
    return {
        "compute": truth.compute - truth.idle,
        "storage": truth.data + truth.save,
        "network": truth.transfer,
        "straggler": truth.late,
        "host": truth.idle,
    }


_CUDA_KINDS = {
    "compute": ("busy", "elsewhere"),
    "storage": ("data", "save"),
    "network": ("transfer",),
    "straggler": ("straggler",),
    "communication": ("other_wait",),
    "host": ("idle", "end"),
}
_CUDA_INJECTED = {"slow-reads": "storage", "save": "storage", "slow-link": "network"}
_CUDA_CHECKS = (
    checks.every_step_is_counted,
    checks.hooks_have_no_fault,
    checks.captures_have_no_event_of_ours,
    checks.nccl_reports_no_error,
)


_LAUNCHES = {1: 1600, 2: 1000, 4: 250}
"""Number of ranks -> steps, in a case whose steps take the device almost no time."""


def _longer(case: Case) -> Case:
    """The case with more steps: idle time inside compute is known only after 20 looks at the device.

    Except in loops that wait for their device, and where launches take longer than kernels, there is little of it.
    """
    times = 2 if case.plan.shape == "pipeline" else 3 if case.plan.loop == "plain" else 6
    steps = _LAUNCHES[case.ranks] if case.plan.operations else case.plan.steps * times
    return replace(case, plan=replace(case.plan, steps=steps))


@contextmanager
def cuda() -> Iterator[Measure]:
    """torch's CUDA build on the stand-in for CUDA's libraries, and its log (tests/support/cudastandin)."""
    if not cuda_lab.python().exists():
        raise CannotRun("torch's CUDA build is not installed: make test-cuda installs it")
    with tempfile.TemporaryDirectory() as folder, cuda_lab.forks() as forks:

        def run(case: Case) -> cuda_lab.Outcome:
            return cuda_lab.run(forks, case, Path(tempfile.mkdtemp(dir=folder)))

        @functools.cache
        def calm(shape: str, steps: int) -> list[float]:
            case = _longer(CUDA_CASES[f"{shape}-none"])
            return [_of_cuda(rank)["straggler"] * steps / case.plan.steps for rank in run(case).ranks]

        def measure(cell: Cell) -> Finding:
            case = _longer(CUDA_CASES[CUDA_NAMES[cell.job, cell.fault]])
            outcome = run(case)
            wall = sum(rank.wall for rank in outcome.ranks)
            pipeline, launches = cell.job == "pipeline", cell.fault == "launches"
            ranks = [_of_cuda(rank) for rank in outcome.ranks]
            bubble = calm(cell.job, case.plan.steps) if pipeline and not launches else []
            shares = _shares(ranks, wall, bubble, _CUDA_INJECTED.get(cell.fault, ""))
            usual = calm(cell.job, case.plan.steps) if case.late is not None and not pipeline else []
            # A stream that waits for another waiting stream: the log does not tell for which rank or transfer.
            undivided = shares["communication"]
            for family in {"straggler", "network", *([] if case.late is None else case.families)}:
                shares[family] += undivided
            slack = _alike(ranks, usual, case.late) / wall + undivided
            slack = 0.0 if outcome.verdict["family"] == "compute" else slack
            # Nothing tells how much of the waits is for a rank whose host is late, or in a pipeline the bubble.
            together = ("host", "straggler", *(["pipeline"] if pipeline else [])) if launches and case.ranks > 1 else ()
            further = [sentence for check in _CUDA_CHECKS for sentence in check(outcome)]
            return judge(
                *(outcome.report, shares, case.families, case.late), slack=slack, together=together, further=further
            )

        yield measure


def _of_cuda(rank: cuda_lab.Rank) -> dict[str, float]:
    return {family: sum(rank.truth[kind] for kind in kinds) for family, kinds in _CUDA_KINDS.items()}


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
