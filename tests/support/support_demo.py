"""A real `whyidle demo` for tests: its process, the address of its agent, its ledgers and its report. It must leave
nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

DEADLINE = 300.0
"""Seconds after which a demo counts as hung. In CI it has the machine alone; elsewhere it shares the machine."""
MARK = "DEMO_TEST_MARK"
COMMAND = [sys.executable, "-m", "whyidle.cli.main", "demo"]


@contextlib.contextmanager
def machine() -> Iterator[None]:
    """One demo at a time. The xdist group has the same effect, but not with every version of pytest and xdist."""
    with open(Path(tempfile.gettempdir(), f"whyidle-tests-{os.getuid()}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def marked(name: str, value: str) -> list[psutil.Process]:
    """The processes that have this in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill_marked(name: str, value: str) -> None:
    for process in marked(name, value):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


class Demo:
    """A running demo. A mark in the environment of its processes identifies them."""

    def __init__(self, tmp_path: Path, *arguments: str, stderr: int = subprocess.PIPE, launcher: Sequence[str] = ()):
        self.tmp_path = tmp_path
        self.mark = uuid.uuid4().hex
        env = {**os.environ, "TMPDIR": str(tmp_path), MARK: self.mark}
        self.process = subprocess.Popen(
            [*launcher, *COMMAND, *arguments], env=env, stdout=subprocess.PIPE, stderr=stderr, text=True
        )

    def finish(self) -> tuple[int, str, str]:
        """Exit status, stdout, stderr. Nothing may remain."""
        out, err = self.process.communicate(timeout=DEADLINE)
        assert self.processes() == []
        assert self._memory() == []
        assert list(self.tmp_path.iterdir()) == []
        return self.process.returncode, out, err or ""

    def kill(self) -> None:
        kill_marked(MARK, self.mark)

    def processes(self) -> list[psutil.Process]:
        return marked(MARK, self.mark)

    def wait_for_steps(self) -> list[psutil.Process]:
        """Returns its processes once it has made steps."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if " steps" in line:
                return self.processes()
        pytest.fail("the demo ended before its first step")

    def training(self) -> bool:
        """Whether its ranks have not ended yet."""
        return any("RANK" in process.environ() for process in self.processes())

    def rank(self, number: int) -> psutil.Process:
        """The training process of a rank: not torchrun, and not one of its data-loading workers."""
        ranks = [process for process in self.processes() if process.environ().get("RANK") == str(number)]
        return next(process for process in ranks if process.parent() not in ranks)

    def ledgers(self) -> str:
        """Their directory. Empty until it exists."""
        return next((f"{folder}/ledgers" for folder in self._memory()), "")

    def agent(self) -> str:
        """The address of its agent; empty as long as it does not listen."""
        assert self.process.poll() is None, "the demo has ended"
        for folder in self._memory():
            with contextlib.suppress(FileNotFoundError):
                if match := re.search(r"\baddress=(\S+)", Path(folder, "agent.log").read_text()):
                    return match[1]
        return ""

    def _memory(self) -> list[str]:
        return glob.glob(f"/dev/shm/whyidle-demo-{self.process.pid}-*")


def names_what_was_injected(report: dict[str, Any], family: str, late: int | None) -> None:
    """The demo's own report has the verdict, the rank to blame if it is one, and as many seconds as were injected."""
    explain = json.dumps({key: report[key] for key in ("seconds", "verdict", "injected", "problems")}, indent=1)
    assert report["verdict"]["family"] == family, explain
    if late is not None:
        assert [entry["rank"] for entry in report["verdict"]["late_ranks"]][:1] == [late], explain
        assert report["verdict"]["late_ranks"][0]["family"] == family, explain
    injected = report["injected"]
    tolerance = max(0.10 * injected["seconds"], 0.02 * report["rank_seconds"])
    assert injected["seconds"] > 0.10 * report["rank_seconds"] * len(injected["ranks"]) / report["ranks"], explain
    assert injected["recovered_seconds"] == pytest.approx(injected["seconds"], abs=tolerance), explain
    sums_are_whole(report)


def sums_are_whole(report: dict[str, Any]) -> None:
    """Every second of every rank has its cause."""
    for rank in report["per_rank"]:
        assert abs(sum(rank["seconds"].values()) - rank["wall_seconds"]) <= max(0.001 * rank["wall_seconds"], 0.005)
        assert rank["seconds"]["unattributed"] < 0.01 * rank["wall_seconds"]
        assert rank["faults"] == 0
        assert rank["cpu"]["asked"] > 0.0
    assert report["problems"] == []
