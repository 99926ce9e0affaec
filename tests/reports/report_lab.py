"""Runs the script of a report, without and with whyidle, and asks whyidle about it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from report_rows import Report
from support_sites import TORCH_ABORTED, WHYIDLE, clean_env
from support_suite_of_cases import CannotRun, ask_report

SCRIPTS = Path(__file__).parent / "scripts"
LIMIT_SECONDS = 90.0
_SLOW_LINK = 'ip link set lo mtu 1500 up && tc qdisc add dev lo root tbf rate {} burst 256kb latency 400ms && exec "$@"'


@dataclass(frozen=True)
class Ran:
    """One run of a script."""

    status: int | None
    """None: it was ended after LIMIT_SECONDS."""
    seconds: float
    truths: list[dict[str, Any]]
    output: str

    @property
    def losses(self) -> dict[int, str]:
        return {each["rank"]: each["loss"] for each in self.truths}


@dataclass(frozen=True)
class Observed:
    """A script's two runs, and what whyidle said about the second."""

    plain: Ran
    recorded: Ran
    report: dict[str, Any]
    text: str
    asked: list[str] = field(default_factory=list)
    """The text of the report during the run."""


def missing(report: Report) -> str | None:
    """Why this machine cannot run it, or None."""
    if not report.link:
        return None
    if lacks := [tool for tool in ("unshare", "ip", "tc") if not shutil.which(tool)]:
        return f"needs {' and '.join(lacks)}"
    tried = subprocess.run(_linked(report, ["true"]), capture_output=True, text=True, check=False)
    return f"needs root, and the right to shape links: {tried.stderr.strip()}" if tried.returncode else None


def observe(report: Report, folder: Path, say: Callable[[str], None] = lambda text: None) -> Observed:
    """Raises CannotRun."""
    if lacks := missing(report):
        raise CannotRun(lacks)
    say("without whyidle")
    plain = _run(report, folder / "plain", [], {"REPORT_FAST": "1"})
    if TORCH_ABORTED in plain.output:
        plain = _run(report, folder / "plain-again", [], {"REPORT_FAST": "1"})
    say("with whyidle")
    asked: list[str] = []
    recorded = _run(report, folder / "recorded", [*WHYIDLE, "run", "--"], {}, asked)
    ledgers = folder / "recorded" / "ledgers"
    found = json.loads(ask_report(ledgers, "--json", seconds=LIMIT_SECONDS))
    return Observed(plain, recorded, found, ask_report(ledgers, seconds=LIMIT_SECONDS), asked)


def _command(report: Report) -> list[str]:
    script = str(SCRIPTS / f"{report.name}.py")
    if report.ranks == 1:
        return [sys.executable, script]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={report.ranks}"]
    return _linked(report, [*launcher, script])


def _linked(report: Report, words: Sequence[str]) -> list[str]:
    if not report.link:
        return [*words]
    return ["unshare", "-n", "bash", "-c", _SLOW_LINK.format(report.link), "link", *words]


def _run(
    report: Report, folder: Path, prefix: Sequence[str], extra: dict[str, str], asked: list[str] | None = None
) -> Ran:
    (folder / "ledgers").mkdir(parents=True)
    env = clean_env(REPORT_DIR=str(folder), WHYIDLE_DIR=str(folder / "ledgers"), OMP_NUM_THREADS="1", **extra)
    env |= {"GLOO_SOCKET_IFNAME": "lo", **report.env}
    begun = time.monotonic()
    with _started([*prefix, *_command(report)], env, folder) as process:
        if asked is not None and report.asked_after is not None and _may_ask(process, folder):
            time.sleep(report.asked_after)
            asked.append(ask_report(folder / "ledgers", seconds=LIMIT_SECONDS))
        status = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(max(0.1, begun + LIMIT_SECONDS - time.monotonic()))
    truths = [json.loads(path.read_text()) for path in sorted(folder.glob("truth-*.json"))]
    return Ran(status, time.monotonic() - begun, truths, (folder / "output").read_text(errors="replace"))


@contextlib.contextmanager
def _started(words: Sequence[str], env: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command in its own session, whose processes end with the block."""
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(words, env=env, stdout=output, stderr=output, cwd=folder, start_new_session=True)
        try:
            yield process
        finally:
            _end_session(process.pid)
            process.wait()


def _end_session(session: int) -> None:
    """Kills what is left of it. torchrun gives each rank its own session, so their parents are killed first."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, signal.SIGTERM)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and not _is_over(session):
            time.sleep(0.05)
        os.killpg(session, signal.SIGKILL)


def _is_over(pid: int) -> bool:
    try:
        return re.search(r"\) Z ", Path(f"/proc/{pid}/stat").read_text()) is not None
    except FileNotFoundError:
        return True


def _may_ask(process: subprocess.Popen[bytes], folder: Path) -> bool:
    """Waits until a rank says so (truth.py's `ask`)."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if any(folder.glob("ask-*")):
            return True
        time.sleep(0.05)
    return False
