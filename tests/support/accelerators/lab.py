"""Runs each shape with each fault on the simulated device: what `whyidle report` says beside what the device did.

`python tests/support/accelerators/lab.py [SHAPE or LOOP…]` prints the tables of docs/accelerators.md; `loops` are all.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support_forks import Forked, Forks
from support_quiet import Stolen, wait_for_quiet
from support_sites import report
from support_training import meeting

from accelerators.truth import Truth, truth_of
from whyidle.ledger.causes import OUTSIDE_CAUSES, WORK_CAUSES
from whyidle.ledger.directory import read_directory

FAULTS = ("none", "slow-reads", "slow-compute", "slow-link", "checkpoint", "hidden")
RANKS = {"ddp": 2, "recomputed": 2, "fsdp1": 2, "fsdp2": 2, "hsdp": 4, "tp-dp": 4, "pipeline": 2}
LOOPS = {
    "reads_its_loss": (1, "storage"),
    "never_waits_for_the_device": (1, "storage"),
    "pins_batches_of_a_worker": (1, "storage"),
    "accumulates": (1, "storage"),
    "clips_gradients": (1, "storage"),
    "scales_gradients": (1, "storage"),
    "averages_its_loss": (1, "storage"),
    "gathers_objects": (1, "storage"),
    "has_a_barrier_in_each_step": (1, "storage"),
    "reduces_its_gradients": (1, "storage"),
    "trains_on_another_stream": (1, "storage"),
    "copies_the_next_batch_on_another_stream": (1, "storage"),
    "evaluates_on_slow_reads": (1, "storage"),
    "updates_an_averaged_model": (1, "storage"),
    "trains_two_models_in_turn": (1, "storage"),
    "logs_slowly": (1, "host"),
    "saves_before_a_barrier": (0, "storage"),
}
"""Function of loops.py -> the rank that is late, and by what family. These cases have no other fault."""
LATE, SAVES = 1, 0
"""The rank with slow reads or slow compute, and the rank that saves, as in host.py."""
LIMIT_SECONDS = 300
ATTEMPTS, PUNCTUAL = 2, 0.02
"""A case is trained again if the threads of a rank's device got no CPU for more than this share of the wall."""
_KINDS = {
    "compute": (
        *WORK_CAUSES,
        "host",
        "host_gc",
        "host_compile",
        "host_blocked",
        "host_allocator",
        "data_start",
        *OUTSIDE_CAUSES,
    ),
    "data": ("data_read", "data_cpu", "data_queue", "data_handoff"),
    "save": ("checkpoint_write", "checkpoint_cpu"),
    "waited": ("network", "straggler", "pipeline", "collective"),
}


@dataclass(frozen=True)
class Rank:
    """One rank of a case: seconds by the device, and by whyidle."""

    truth: Truth
    seconds: dict[str, float]
    wall: float
    calls: list[str]
    contexts: list[bool]
    losses: list[float]

    def ours(self, kind: str) -> float:
        return sum(self.seconds[cause] for cause in _KINDS[kind])

    @property
    def error(self) -> float:
        """The largest error of any kind, as a share of the wall time."""
        return max(abs(self.ours(kind) - getattr(self.truth, kind)) for kind in _KINDS) / self.truth.wall

    @property
    def late(self) -> float:
        """How long the device was late because its thread got no CPU, as a share of the wall. Each of these moments may
        move one boundary, so this much of the error can come from it."""
        return self.truth.unscheduled / self.truth.wall


@dataclass(frozen=True)
class Case:
    shape: str
    """Or the name of a loop."""
    fault: str
    """Empty for a loop."""
    ranks: list[Rank]
    report: dict[str, Any]
    stolen: float
    """The share of this machine's CPU time that its hypervisor gave to others meanwhile, during which hosts stood
    still."""

    @property
    def punctual(self) -> bool:
        """Whether no device was late for lack of a CPU, so that the case shows what a real device does."""
        return max(rank.late for rank in self.ranks) <= PUNCTUAL

    @property
    def transfer(self) -> float:
        """The share of all ranks' time that waits for transfers took, according to the device."""
        return sum(rank.truth.transfer for rank in self.ranks) / sum(rank.truth.wall for rank in self.ranks)

    @property
    def culprit(self) -> tuple[int, str] | None:
        return LOOPS.get(self.shape) or {
            "slow-reads": (LATE, "storage"),
            "slow-compute": (LATE, "straggler"),
            "checkpoint": (SAVES, "storage"),
        }.get(self.fault)


def run(forks: Forks, wanted: Sequence[tuple[str, str]], folder: Path) -> Iterator[Case]:
    """Trains each (shape, fault) in turn. Cases with the same number of ranks use the same processes."""
    for size in sorted({RANKS.get(shape, 2) for shape, _ in wanted}):
        cases = [(shape, fault) for shape, fault in wanted if RANKS.get(shape, 2) == size]
        for attempt in range(ATTEMPTS):
            into = folder / f"{size}-{attempt}"
            into.mkdir(parents=True)
            with Stolen() as stolen:
                _train(forks, size, [_name(shape, fault) for shape, fault in cases], into)
            found = [_case(shape, fault, into, stolen.share) for shape, fault in cases]
            last = attempt == ATTEMPTS - 1
            yield from (case for case in found if last or case.punctual)
            cases = [(case.shape, case.fault) for case in found if not (last or case.punctual)]
            if not cases:
                break


def _train(forks: Forks, size: int, cases: list[str], folder: Path) -> None:
    with ranks(forks, "job.py", size, folder, cases) as processes:
        for rank, process in enumerate(processes):
            if process.wait(LIMIT_SECONDS):
                raise RuntimeError(f"rank {rank}: {log(folder, rank)[-4000:]}")


@contextlib.contextmanager
def ranks(forks: Forks, script: str, size: int, folder: Path, words: Sequence[str]) -> Iterator[list[Forked]]:
    """The ranks of a run, which end with the block. Each attaches whyidle itself."""
    path, port = str(Path(__file__).with_name(script)), meeting(size)["MASTER_PORT"]
    with contextlib.ExitStack() as stack:
        processes = []
        for rank in range(size):
            arguments = (path, str(rank), str(size), port, str(folder), *words)
            process = forks.start(arguments, folder / f"log.{rank}", recorded=False)
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def log(folder: Path, rank: int) -> str:
    """What a rank has written to stderr."""
    return (folder / f"log.{rank}" / "stderr").read_text()


def _name(shape: str, fault: str) -> str:
    return f"{shape}:{fault}" if fault else shape


def _case(shape: str, fault: str, folder: Path, stolen: float) -> Case:
    name = _name(shape, fault)
    said = report(folder / name)
    ledgers, _ = read_directory(str(folder / name))
    windows = {ledger.rank: (ledger.window_ns, ledger.last_sign_ns) for ledger in ledgers}
    ranks = []
    for rank in said["per_rank"]:
        told = json.loads((folder / f"{name}.{rank['rank']}.json").read_text())
        # The schedule also has what the report leaves out of its window, because it came after the last step.
        seconds = {**rank["seconds"], **rank["outside_seconds"]}
        wall = rank["wall_seconds"] + sum(rank["outside_seconds"].values())
        truth = truth_of(told, *windows[rank["rank"]])
        ranks.append(Rank(truth, seconds, wall, told["calls"], told["contexts"], told["losses"]))
    return Case(shape, fault, ranks, said, stolen)


def table(cases: list[Case]) -> str:
    waits, transfers = "waits: device, ours", "transfers: device, ours"
    heads = ("", "fault", "verdict", "late", waits, transfers, "worst error", "device late")
    rows = [f"| {' | '.join(heads)} |", "|-" * len(heads) + "|"]
    for case in cases:
        verdict, wall = case.report["verdict"], sum(rank.truth.wall for rank in case.ranks)
        waited = sum(rank.truth.waited for rank in case.ranks) / wall
        ours = sum(rank.ours("waited") for rank in case.ranks) / wall
        moved = sum(rank.seconds["network"] for rank in case.ranks) / wall
        late = ", ".join(f"rank {one['rank']} ({one['family']})" for one in verdict["late_ranks"][:1])
        cells = (
            *(case.shape, case.fault, f"{verdict['family']} {verdict['share']:.0%}", late),
            *(f"{waited:.1%}, {ours:.1%}", f"{case.transfer:.1%}, {moved:.1%}"),
            *(f"{max(rank.error for rank in case.ranks):.1%}", f"{max(rank.late for rank in case.ranks):.1%}"),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary, Forks() as started:
        wait_for_quiet()
        wanted = LOOPS if sys.argv[1:] == ["loops"] else sys.argv[1:] or RANKS
        every = [(name, fault) for name in wanted for fault in ([""] if name in LOOPS else FAULTS)]
        print(table(list(run(started, every, Path(temporary)))))
