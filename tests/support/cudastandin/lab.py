"""Runs cases, and puts what `whyidle report` says beside what the log of the device says.

python tests/support/cudastandin/lab.py [NAME OF A CASE ...]     (from the root, after `make test-cuda`)
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support_forks import Forked, Forks
from support_sites import report
from support_training import meeting

from cudastandin.cases import CASES, Case
from cudastandin.truth import MARKED, Log, Span, read_log, truth_of, waits_of
from whyidle.ledger.causes import OUTSIDE_CAUSES, WORK_CAUSES
from whyidle.ledger.directory import read_directory
from whyidle.ledger.reader import Ledger
from whyidle.verdict.outside import shutdown_of

ROOT = Path(__file__).parents[3]
JOB = Path(__file__).with_name("job.py")
LIMIT_SECONDS = 240
SHARED_MEMORY = Path("/dev/shm")
FIRST_STEPS = 3
"""In these the host is not ahead of its device, and may lose its CPU between a boundary and the wait that it marks."""
_OURS = {
    "busy": WORK_CAUSES,
    "data": ("data_start", "data_read", "data_cpu", "data_queue", "data_handoff"),
    "save": ("checkpoint_write", "checkpoint_cpu"),
    "waits": ("network", "straggler", "pipeline", "collective", "collective_queue"),
    "idle": ("host", "host_gc", "host_compile", "host_blocked", "host_allocator", *OUTSIDE_CAUSES),
}
"""Kind of time -> the causes of the report."""
KINDS_OF_LOG = {
    "busy": ("busy", "elsewhere"),
    "data": ("data",),
    "save": ("save",),
    "waits": ("straggler", "transfer", "other_wait"),
    "idle": ("idle", "end"),
}
"""Kind of time -> the kinds of the log."""


def python() -> Path:
    """The interpreter of the environment with torch's CUDA build."""
    return Path(os.environ.get("WHYIDLE_TEST_CUDA") or ROOT / ".venv" / "cuda", "bin", "python")


@contextmanager
def forks() -> Iterator[Forks]:
    """Forks of a process that has imported torch's CUDA build and has not touched a device."""
    # torch 2.11 asks how many devices there are when torch._inductor is imported. After that, no fork could use them.
    no_question = {"TORCHINDUCTOR_USE_EXPERIMENTAL_BENCHMARKER": "0"}
    with Forks(python(), PYTHONPATH=str(ROOT / ".venv" / "typing"), **no_question) as found:
        yield found


@dataclass(frozen=True)
class Rank:
    """One rank of a case. Seconds by kind: as its device wrote down, and as whyidle reports."""

    told: dict[str, Any]
    reported: dict[str, Any]
    truth: dict[str, float]
    captured: int
    """How many events with timing were recorded into a capture."""
    after: dict[str, float]
    """By cause, what the report sums up as `shutdown`: it came after the last step. The device may have worked then."""
    brackets: list[Span]
    """When waits began and ended, as whyidle recorded. Without those of the first steps."""
    waits: list[Span]
    """When the home stream waited, as its device wrote down."""

    @property
    def number(self) -> int:
        return self.reported["rank"]

    @cached_property
    def wall(self) -> float:
        """With what the report leaves out of the window, because it came after the last step."""
        return self.reported["wall_seconds"] + sum(self.reported["outside_seconds"].values())

    @cached_property
    def seconds(self) -> dict[str, float]:
        """As whyidle reports, by cause. What came after the main program stays `shutdown`."""
        found = {**self.reported["seconds"], **self.reported["outside_seconds"]}
        found["shutdown"] -= sum(self.after.values())
        return {cause: seconds + self.after.get(cause, 0.0) for cause, seconds in found.items()}

    @cached_property
    def device(self) -> dict[str, float]:
        return {kind: sum(self.truth[each] for each in theirs) for kind, theirs in KINDS_OF_LOG.items()}

    @cached_property
    def ours(self) -> dict[str, float]:
        """Gaps that were sampled are in `host` already."""
        return {kind: sum(self.seconds[each] for each in causes) for kind, causes in _OURS.items()}

    @cached_property
    def errors(self) -> dict[str, float]:
        """The difference by kind, as a share of the wall time."""
        return {kind: (self.ours[kind] - self.device[kind]) / self.wall for kind in _OURS}

    @property
    def error(self) -> float:
        return max(map(abs, self.errors.values()))


@dataclass(frozen=True)
class Outcome:
    case: Case
    ranks: list[Rank]
    report: dict[str, Any]
    stderr: str
    seconds: float

    @property
    def verdict(self) -> dict[str, Any]:
        return self.report["verdict"]

    @property
    def late(self) -> list[int]:
        return [one["rank"] for one in self.verdict["late_ranks"][:1]]

    def lines(self) -> str:
        """For people, and for failed tests."""
        family, share = self.verdict["family"], self.verdict["share"]
        found = [f"{self.case.name}: {family} {share:.0%}, late {self.late}, {self.seconds:.1f} s"]
        for rank in self.ranks:
            pairs = ", ".join(f"{kind} {rank.device[kind]:.3f}/{rank.ours[kind]:.3f}" for kind in _OURS)
            found.append(f"  rank {rank.number}: error {rank.error:.1%}, wall {rank.wall:.3f}; device/ours: {pairs}")
            found.append(f"    device {_short(rank.truth)}")
            found.append(f"    ours {_short(rank.seconds)}")
        return "\n".join(found)


def _short(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {spent:.3f}" for name, spent in seconds.items() if spent > 0.0005)


@contextmanager
def started(forks: Forks, case: Case, folder: Path, *, recorded: bool = True) -> Iterator[list[Forked]]:
    """The ranks of a case, which end with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log").mkdir()
    with ExitStack() as stack:
        shared = stack.enter_context(tempfile.TemporaryDirectory(prefix="standin-", dir=SHARED_MEMORY))
        env = {
            **meeting(case.ranks),
            "STANDIN_LOG": str(folder / "log"),
            "STANDIN_SHARED": shared,
            "STANDIN_DEVICES": str(case.ranks),
            **case.env,
        }
        processes = []
        for rank in range(case.ranks):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if case.ranks > 1 else {}
            process = forks.start(
                (str(JOB), case.plan.text(), str(folder)), folder, {**env, **place}, recorded=recorded
            )
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def run(forks: Forks, case: Case, folder: Path) -> Outcome:
    begun = time.monotonic()
    with started(forks, case, folder) as processes:
        codes = [process.wait(LIMIT_SECONDS) for process in processes]
    seconds = time.monotonic() - begun
    stderr = folder.joinpath("stderr").read_text()
    if any(codes):
        raise RuntimeError(f"{case.name} ended with {codes}: {stderr[-6000:]}")
    ledgers, problems = read_directory(str(folder / "ledgers"), steps=True)
    if problems:
        raise RuntimeError(f"{case.name}: {problems}")
    said = report(folder / "ledgers")
    by_rank = {ledger.rank: ledger for ledger in ledgers}
    ranks = [_rank(folder, each, by_rank[each["rank"]]) for each in said["per_rank"]]
    return Outcome(case, ranks, said, stderr, seconds)


def losses(forks: Forks, case: Case, folder: Path) -> list[list[float]]:
    """The losses of each rank without whyidle."""
    with started(forks, case, folder, recorded=False) as processes:
        codes = [process.wait(LIMIT_SECONDS) for process in processes]
    if any(codes):
        raise RuntimeError(f"{case.name} ended with {codes}: {folder.joinpath('stderr').read_text()[-6000:]}")
    return [json.loads((folder / f"told.{rank}.json").read_text())["losses"] for rank in range(case.ranks)]


def _rank(folder: Path, reported: dict[str, Any], ledger: Ledger) -> Rank:
    told = json.loads((folder / f"told.{ledger.rank}.json").read_text())
    log: Log = read_log(folder / "log" / f"ops.{ledger.pid}.tsv")
    marks = {kind: told[kind] for kind in MARKED}
    marks["end"] = [(start, ledger.last_sign_ns) for start, _ in told["end"]]
    truth = truth_of(log.ops, marks, told["home"], (ledger.window_ns, ledger.last_sign_ns))
    after = {cause: ns / 1e9 for cause, ns in shutdown_of(ledger).items()}
    return Rank(told, reported, truth, log.captured, after, _brackets(ledger), waits_of(log.ops, told["home"]))


def _brackets(ledger: Ledger) -> list[Span]:
    """A wait begins some time after the one before it, or after the start of its step."""
    since = {step.number: step.end_ns - step.wall_ns for step in ledger.ring}
    found = []
    for call in ledger.calls:
        if call.step in since:
            begun = since[call.step] + call.gap_ns
            since[call.step] = begun + call.ns
            if call.step > FIRST_STEPS:
                found.append((begun, begun + call.ns))
    return found


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in CASES]
    if unknown:
        print(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="cuda-"))
    with forks() as found:
        for name in names or CASES:
            print(run(found, CASES[name], folder / name).lines(), flush=True)
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
