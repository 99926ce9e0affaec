"""Runs training scripts as a user would, plain and under `whyidle run`, and collects the scripts' own records and the
ledgers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen

from support_sites import clean_env

from whyidle.ledger.directory import read_directory
from whyidle.ledger.reader import Ledger

T = TypeVar("T")
SCRIPTS = Path(__file__).parent / "scripts"
LIMIT_SECONDS = 240.0
_TAG = "TRAINING_TEST_TAG"


@dataclass
class Told:
    """What one process of a script recorded about itself (tests/support/scripts/account.py)."""

    pid: int
    rank: int
    counts: dict[str, int]
    losses: dict[str, list[str]]
    spans: dict[str, list[int]]
    facts: dict[str, Any]
    start_ticks: int
    boottime_ns: int
    gathered_ns: int
    """CLOCK_BOOTTIME of the test, in ns, after the processes had ended."""

    @property
    def wall_ns(self) -> int:
        """From the start of the process, which the kernel records to 10 ms, to its last exit handler."""
        return self.boottime_ns - self.start_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")

    @property
    def most_ns(self) -> int:
        """An upper bound of its life time."""
        return self.wall_ns + self.gathered_ns - self.boottime_ns


@dataclass
class Outcome:
    returncode: int
    stdout: str
    stderr: str
    seconds: float
    told: list[Told]
    ledgers: list[Ledger] = field(default_factory=list)
    left_behind: list[int] = field(default_factory=list)

    def rank(self, rank: int) -> tuple[Told, Ledger]:
        (told,) = (one for one in self.told if one.rank == rank)
        (ledger,) = (one for one in self.ledgers if one.pid == told.pid)
        return told, ledger


def command(script: str, *arguments: str, ranks: int = 0, options: Sequence[str] = ()) -> list[str]:
    """How a user starts a script of tests/support/scripts: by python, or by torchrun when it has ``ranks``."""
    if not ranks:
        return [sys.executable, str(SCRIPTS / script), *arguments]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *options]
    return [*launcher, str(SCRIPTS / script), *arguments]


def environment(folder: Path, **extra: str) -> dict[str, str]:
    """Without variables of whyidle. Ledgers, if there are any, are written to ``folder``/ledgers."""
    return clean_env() | {
        "ACCOUNT_DIR": str(folder),
        "WHYIDLE_DIR": str(folder / "ledgers"),
        "WHYIDLE_WATCHER_SHARE": "0.02",  # as many looks on busy cores as on idle ones
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        _TAG: str(folder),
        **extra,
    }


def recorded(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "whyidle.cli.main", "run", "--", *words]


def run(words: Sequence[str], folder: Path, **extra: str) -> Outcome:
    """Runs a command to its end, with ``folder`` for itself, which is created here."""
    begun = time.monotonic()
    with start(words, folder, **extra) as process:
        try:
            stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
        except BaseException:
            kill_all(folder)
            raise
    return gather(folder, process.returncode, stdout, stderr, time.monotonic() - begun)


def run_past_torch(words: Sequence[str], folder: Path) -> Outcome:
    """Retries: on busy cores, torch 2.13 aborts in one of about 25 runs when a rank with gloo ends.

    Only for runs without whyidle, and for those in which no thread of whyidle could be the reason.
    """
    for attempt in range(3):
        outcome = run(words, folder / str(attempt))
        if "terminate called without an active exception" not in outcome.stderr:
            break
    return outcome


def start(words: Sequence[str], folder: Path, **extra: str) -> subprocess.Popen[str]:
    """Starts a command whose account and ledgers go to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        list(words), env=environment(folder, **extra), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def meeting(ranks: int) -> dict[str, str]:
    """The environment in which ranks meet without a launcher. ``SECOND_PORT`` is another free port."""
    found = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(ranks), "WHYIDLE_RUN": "by-hand"}
    with socket.socket() as first, socket.socket() as second:
        for name, probe in (("MASTER_PORT", first), ("SECOND_PORT", second)):
            probe.bind(("127.0.0.1", 0))
            found[name] = str(probe.getsockname()[1])
    return found


def kill_all(folder: Path) -> None:
    """Ends the remaining processes of this directory."""
    for pid in pids_of(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def gather(
    folder: Path,
    returncode: int,
    stdout: str = "",
    stderr: str = "",
    seconds: float = 0.0,
    sessions: set[int] | frozenset[int] = frozenset(),
) -> Outcome:
    """What a command has left: its accounts and ledgers, and the processes of its directory or of its sessions."""
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    ledgers, errors = read_directory(str(folder / "ledgers"), steps=True)
    assert not errors, errors
    told = [Told(**json.loads(path.read_text()), gathered_ns=now) for path in sorted(folder.glob("*.json"))]

    def left_behind() -> list[int]:
        return pids_of(folder) + pids_of_sessions(sessions)

    until(lambda: not left_behind(), 10.0)  # a process that is just being reaped does not count
    return Outcome(returncode, stdout, stderr, seconds, told, ledgers, left_behind())


def pids_of(folder: Path) -> list[int]:
    """The processes that were started for this directory, by any process."""
    tag = f"{_TAG}={folder}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and tag in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def pids_of_sessions(sessions: set[int] | frozenset[int]) -> list[int]:
    """The processes of these sessions, each named by the pid of its first process."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) in sessions:
                found.append(int(entry.name))
        except ProcessLookupError:
            continue
    return found


def until(ask: Callable[[], T], seconds: float = LIMIT_SECONDS) -> T:
    """Calls it until the answer is true, or until this time is over, and returns the last answer."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return answer


def ledgers_of(folder: Path) -> dict[int, Ledger]:
    """The current ledgers: rank -> the newest attempt's."""
    ledgers, _ = read_directory(str(folder / "ledgers"), steps=True)
    return {ledger.rank: ledger for ledger in sorted(ledgers, key=lambda one: one.attempt)}


@contextlib.contextmanager
def training(words: Sequence[str], folder: Path, **extra: str) -> Iterator[subprocess.Popen[str]]:
    """A command that runs while the test observes it, and ends with the block."""
    process = start(words, folder, **extra)
    try:
        yield process
    finally:
        kill_all(folder)
        process.communicate()


@contextlib.contextmanager
def agent(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A real agent on a free port -> its process and the address of its metrics."""
    words = [sys.executable, "-m", "whyidle.cli.main", "agent", f"--ledger.dir={directory}"]
    with subprocess.Popen([*words, "--web.listen-address=127.0.0.1:0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            found = re.search(r'address="?([0-9.:]+)', line)
            assert found, line
            yield process, f"http://{found[1]}/metrics"
        finally:
            process.kill()


def metrics(address: str, name: str) -> list[tuple[dict[str, str], float]]:
    """The samples of one metric, as (labels, value)."""
    from prometheus_client.parser import text_string_to_metric_families

    with urlopen(address, timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return [(s.labels, s.value) for family in families for s in family.samples if s.name == name]


def sum_of_causes(ledger: Ledger) -> int:
    return sum(ledger.cause_ns.values()) + ledger.pending_ns


def assert_every_second_is_in_one_place(told: Told, ledger: Ledger) -> None:
    """The first law: the causes sum to the wall time that the process itself has measured.

    The script's clock is read just before our own exit handler, whose time also belongs to the process: about 0.3 ms,
    up to 200 ms while the last waits are settled, and more on busy cores. It always ends before the test reads the
    ledger.
    """
    assert sum_of_causes(ledger) == ledger.until_ns - ledger.start_ns
    allowed = max(told.wall_ns // 1000, 5_000_000)
    assert told.wall_ns - allowed <= sum_of_causes(ledger) <= told.most_ns + allowed
    assert ledger.cause_ns["unattributed"] - ledger.data_gone_ns <= told.wall_ns // 100


def steps_between(ledger: Ledger, start_ns: int, end_ns: int) -> int:
    """How many steps ended in an interval of CLOCK_MONOTONIC, by the ledger's ring."""
    return sum(start_ns <= step.end_ns <= end_ns for step in ledger.ring)
