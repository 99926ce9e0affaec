"""A real `whyidle demo` for tests: its process, its agent's address and ledgers, and nothing left of it."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

DEADLINE = 300.0
"""Seconds after which a demo hangs. It has the machine for itself in CI, and shares it elsewhere."""
MARK = "DEMO_TEST_MARK"
COMMAND = [sys.executable, "-m", "whyidle.cli.main", "demo"]


@contextlib.contextmanager
def machine() -> Iterator[None]:
    """One demo at a time. The xdist group says so too, but not every pair of pytest and xdist heeds it."""
    with open(Path(tempfile.gettempdir(), f"whyidle-tests-{os.getuid()}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Demo:
    """A demo under way, all of whose processes can be told from others by a mark in their environment."""

    def __init__(self, tmp_path: Path, *arguments: str, stderr: int = subprocess.PIPE):
        self.tmp_path = tmp_path
        self.mark = uuid.uuid4().hex
        env = {**os.environ, "TMPDIR": str(tmp_path), MARK: self.mark}
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], env=env, stdout=subprocess.PIPE, stderr=stderr, text=True
        )

    def finish(self) -> tuple[int, str, str]:
        """Exit status, stdout, stderr; nothing may be left of it."""
        out, err = self.process.communicate(timeout=DEADLINE)
        assert self.processes() == []
        assert self._memory() == []
        assert list(self.tmp_path.iterdir()) == []
        return self.process.returncode, out, err or ""

    def kill(self) -> None:
        for process in self.processes():
            process.kill()

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def wait_for_steps(self) -> list[psutil.Process]:
        """Returns its processes once it has made steps."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if " steps" in line:
                return self.processes()
        pytest.fail("the demo ended before its first step")

    def rank(self, number: int) -> psutil.Process:
        """The training process of a rank: not torchrun, and not one of its data-loading workers."""
        ranks = [process for process in self.processes() if process.environ().get("RANK") == str(number)]
        return next(process for process in ranks if process.parent() not in ranks)

    def ledgers(self) -> str:
        """Their directory; empty as long as there is none."""
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
