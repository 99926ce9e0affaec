"""Starts the process that measures, reads its results, and ends it together with everything that it has started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from ....advisor.bench.storage.plan import Plan
from ...run import environment
from ...stopping import StopSignals
from ..children import die_with_parent

_JOB = f"{__name__.partition('.')[0]}.advisor.bench.storage.job"
_FOREIGN = ("PET_", "TORCHELASTIC_", "MASTER_", "WHYIDLE_", "SLURM_", "OMPI_", "PMI_")
_FOREIGN_NAMES = frozenset({"RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"})
"""Environment variables that would make our process a rank of a surrounding job."""
_LOOK_SECONDS = 0.1
_END_SECONDS = 10.0


class Child:
    """The process that measures directories. It has a separate session, so that Ctrl-C reaches only us.

    ``own``: a directory for its ledgers and its stderr.
    """

    def __init__(self, directories: list[str], plan: Plan, own: str):
        self.ledgers = os.path.join(own, "ledgers")
        self._log = os.path.join(own, "log")
        os.makedirs(self.ledgers)
        env = environment(_without_job(os.environ), self.ledgers, None)
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _JOB],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**env, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
                preexec_fn=partial(die_with_parent, signal.SIGTERM),
            )
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it has already failed, as its status shows
            self._process.stdin.write(json.dumps({"directories": directories, "plan": asdict(plan)}).encode())
            self._process.stdin.close()

    def said(self, stop: StopSignals) -> Iterator[dict[str, Any]]:
        """Yields its messages until it has ended. Raises Stopped.

        Other lines are skipped, because any module that Python loads at startup may print.
        """
        assert self._process.stdout
        pipe = self._process.stdout.fileno()
        rest = b""
        while True:
            stop.check()
            if not select.select([pipe], [], [], _LOOK_SECONDS)[0]:
                continue
            got = os.read(pipe, 1 << 16)
            if not got:
                break
            *lines, rest = (rest + got).split(b"\n")
            for line in lines:
                try:
                    words = json.loads(line)
                except ValueError:
                    continue
                if isinstance(words, dict) and "part" in words:
                    yield words
        self._process.wait()

    @property
    def status(self) -> int | None:
        return self._process.poll()

    def log(self) -> str:
        """The end of its stderr."""
        with open(self._log, encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-30:])

    def end(self) -> None:
        """Kills the process and everything that it has started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            print(
                f"whyidle bench storage: process {self._process.pid} cannot be ended: its storage does not answer",
                file=sys.stderr,
            )
        if self._process.stdout:
            self._process.stdout.close()


def _without_job(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not name.startswith(_FOREIGN) and name not in _FOREIGN_NAMES}
