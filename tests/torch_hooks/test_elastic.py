"""Ranks leave and return: two launchers have 3 + 1 ranks of an elastic job, and the second is killed and restarted.

Whatever happens to a rank, whyidle must not keep the others from training: nothing hangs, and each incarnation has
ledgers of its own attempt.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support_demo import machine
from support_sites import report
from support_training import SCRIPTS, environment, kill_all, ledgers_of, pids_of, until

pytestmark = [pytest.mark.long, pytest.mark.alone]
STEPS = 60
"""What an incarnation must have trained before the next change: more than one exchange between the ranks."""

TIMEOUTS = "last_call_timeout=2,keep_alive_interval=2,keep_alive_max_attempt=4"


@dataclass(frozen=True)
class Part:
    """What one process has done so far."""

    rank: int
    world_size: int
    begun: int
    done: int


@dataclass
class Job:
    folder: Path
    port: int

    def launcher(self, ranks: int, serves: bool = False) -> subprocess.Popen[bytes]:
        """A launcher that joins the job with this many ranks. It takes another one as dead after eight seconds of
        silence.

        The process that ``serves`` has the store through which they meet.
        """
        words = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", f"--nproc-per-node={ranks}"]
        words += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=elastic"]
        words += ["--max-restarts=5", "--rdzv-conf", f"{TIMEOUTS},is_host={serves}"]
        words += ["--monitor-interval=0.1", "--local-addr=127.0.0.1", str(SCRIPTS / "elastic.py")]
        with open(self.folder / "launchers.err", "ab") as errors:
            # Otherwise torch 2.13 deadlocks if a launcher that returns sorts before the one with the store.
            env = environment(self.folder, WHYIDLE_RUN="elastic", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
            return subprocess.Popen(words, env=env, stderr=errors, start_new_session=True)

    def parts(self) -> dict[int, Part]:
        """The ledgers by pid."""
        return {int(file.stem): Part(*map(int, file.read_text().split())) for file in self.folder.glob("*.part")}

    def trains_with(self, world_size: int, not_in: set[int]) -> set[int]:
        """Waits until this many new processes have trained STEPS together, and returns their pids."""

        def found() -> set[int]:
            parts = {pid: part for pid, part in self.parts().items() if pid not in not_in}
            now = {pid for pid, part in parts.items() if part.world_size == world_size}
            long_enough = [pid for pid in now if parts[pid].done - parts[pid].begun >= STEPS]
            return now if len(long_enough) >= world_size else set()

        pids = until(found, 90.0)
        assert pids, (
            f"{world_size} ranks do not train: {self.parts()}\n{(self.folder / 'launchers.err').read_text()[-3000:]}"
        )
        return pids


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with machine():
        try:
            yield Job(tmp_path, _free_port())
        finally:
            kill_all(tmp_path)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_records_training_that_continues_with_three_of_four_ranks_and_four_again(job: Job) -> None:
    three, one = job.launcher(3, serves=True), job.launcher(1)
    first = job.trains_with(4, set())

    kill_session(one)
    second = job.trains_with(3, first)

    one = job.launcher(1)
    third = job.trains_with(4, first | second)

    (job.folder / "stop").touch()
    for launcher in (three, one):
        assert launcher.wait(30.0) == 0
    assert until(lambda: not pids_of(job.folder), 10.0), "processes are left behind"

    parts = job.parts()
    steps = [max(parts[pid].done for pid in pids) for pids in (first, second, third)]
    assert steps == sorted(steps), "an incarnation has not gone on from what the one before it had saved"
    ledgers = ledgers_of(job.folder)
    assert {rank: ledger.world_size for rank, ledger in ledgers.items()} == dict.fromkeys(range(4), 4)
    for entry in report(job.folder / "ledgers")["per_rank"]:
        assert entry["faults"] == 0
        assert sum(entry["seconds"].values()) == pytest.approx(entry["wall_seconds"], rel=0.001)


def kill_session(launcher: subprocess.Popen[bytes]) -> None:
    """Simulates the loss of a launcher's machine: the launcher and its ranks die at once."""
    ranks = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(launcher.pid)], capture_output=True, text=True, check=True
    )
    for pid in [launcher.pid, *map(int, ranks.stdout.split())]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    launcher.wait()
