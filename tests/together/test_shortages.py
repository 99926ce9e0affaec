"""Real trainings that lack something that they were given: the report says what, and the advice comes first."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support_neighbours import neighbours
from support_training import command, recorded, run, training

from whyidle.advisor.advice.case import case_of
from whyidle.advisor.advice.given import FIRST
from whyidle.advisor.advice.table import advise
from whyidle.ledger.directory import read_directory, run_of
from whyidle.verdict.enough import NO_LIMITS
from whyidle.verdict.report import build_report

CPU = Path("/sys/fs/cgroup/cpu")
ENTERS = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


@dataclass(frozen=True)
class Shortage:
    arguments: tuple[str, ...]
    given: str
    """What the report's line on CPUs says."""
    advice: str = ""
    """One of the first two; empty: none about what the run was given."""
    settings: tuple[tuple[str, float, float], ...] = ()
    """(name, least, most)."""
    family: str = "cpu"
    cpus: int = 0
    """That it may use, by affinity; 0: all."""
    quota: float = 0.0
    above: bool = False
    beside: int = 0
    """Other programs that compute all the time, each in one thread."""
    twice: bool = False
    """The same job runs a second time, beside it."""


DECODE = ("decode", "--samples", "240", "--decode", "0.02")
RANKS = ("ranks", "--samples", "60", "--width", "1024")
SHORTAGES = {
    "a quota": Shortage(DECODE, "quota of the control group", "cpu.limit", (("cpus", 1, 2),), quota=0.4),
    "a quota of a group above": Shortage(DECODE, "control group above", "cpu.limit", quota=0.4, above=True),
    "one CPU for four workers": Shortage((*DECODE, "--workers", "4"), "(affinity)", "cpu.limit", cpus=1),
    "workers on one CPU": Shortage(
        (*DECODE, "--workers", "3", "--narrow", "0"), "data workers may use 1 alone (CPU 0)", "cpu.affinity"
    ),
    "two jobs on one CPU": Shortage(DECODE, "(affinity), used 0.", "cpu.limit", cpus=1, twice=True),
    "a neighbour that takes all CPUs": Shortage(DECODE, ", other programs 1.", "cpu.others", beside=4),
    "workers with threads of their own": Shortage(
        ("decode", "--samples", "400", "--workers", "3", "--threads", "8"),
        "a data worker runs",
        "cpu.threads",
        (("worker_threads", 1, 1),),
    ),
    "one CPU for a loop without workers": Shortage(
        ("decode", "--samples", "200", "--decode", "0.02", "--workers", "0"),
        "(affinity)",
        "cpu.limit",
        (("cpus", 2, 2),),
        cpus=1,
    ),
    "threads of two ranks": Shortage(
        (*RANKS, "--threads", "8"), "2 ranks may use", "cpu.threads", (("OMP_NUM_THREADS", 1, os.cpu_count() or 1),)
    ),
}


@contextlib.contextmanager
def group(quota: float, *, above: bool) -> Iterator[list[str]]:
    """A control group with this quota. Yields what to put before a command that runs in it, or in a group inside it."""
    folder = CPU / f"whyidle-short-{os.getpid()}"
    inner = folder / "inner" if above else folder
    try:
        inner.mkdir(parents=True)
    except OSError:
        pytest.skip("no control group of version 1 can be made here")
    try:
        (folder / "cpu.cfs_period_us").write_text("100000")
        (folder / "cpu.cfs_quota_us").write_text(str(round(100_000 * quota)))
        yield ["sh", "-c", ENTERS, str(inner)]
    finally:
        for one in dict.fromkeys((inner, folder)):
            _remove(one)


def _remove(folder: Path) -> None:
    for _ in range(50):
        with contextlib.suppress(OSError):  # a process is about to end
            folder.rmdir()
            return
        time.sleep(0.1)


@contextlib.contextmanager
def affinity(cpus: int) -> Iterator[None]:
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(mine)[:cpus] if cpus else mine)
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def told(words: Sequence[str], folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """The report of a training, and its advice."""
    outcome = run(words, folder)
    assert outcome.returncode == 0, outcome.stderr
    ledgers, problems = read_directory(str(folder / "ledgers"), steps=True)
    assert not problems
    name, now = run_of(ledgers[0]), time.monotonic_ns()
    return build_report(name, ledgers, now, least=NO_LIMITS), advise(case_of(name, ledgers, now, least=NO_LIMITS))


@pytest.mark.long
@pytest.mark.parametrize("name", SHORTAGES)
def test_a_shortage_is_named_and_what_helps_comes_first(name: str, tmp_path: Path) -> None:
    short = SHORTAGES[name]
    with contextlib.ExitStack() as stack:
        enters = stack.enter_context(group(short.quota, above=short.above)) if short.quota else []
        stack.enter_context(affinity(short.cpus))
        stack.enter_context(neighbours(short.beside))
        words = [*enters, *recorded(command("shortages.py", *short.arguments))]
        if short.twice:
            (tmp_path / "other").mkdir()
            stack.enter_context(training(words, tmp_path / "other"))
        report, advice = told(words, tmp_path)
    said = [(one.id, dict(one.settings), one.gain.share) for one in advice]
    assert report["verdict"]["family"] == short.family, report["verdict"]
    assert short.given in report["given"]["sentences"][0], report["given"]
    if not short.advice:
        assert not {one.id for one in advice} & set(FIRST), said
        return
    assert short.advice in [one.id for one in advice[:2]], said
    [found] = [one for one in advice if one.id == short.advice]
    for setting, least, most in short.settings:
        assert least <= found.settings[setting] <= most, said


@pytest.mark.long
def test_a_job_that_has_enough_hears_nothing(tmp_path: Path) -> None:
    words = recorded(command("shortages.py", "decode", "--samples", "1500", "--decode", "0.001", "--width", "1024"))
    with group(1.9, above=False) as enters:
        report, advice = told([*enters, *words], tmp_path)
    assert not {one.id for one in advice} & set(FIRST), report["given"]
    assert "quota of the control group" in report["given"]["sentences"][0]
    for word in ("read again", "full", "alone", "narrowed", "threads"):
        assert word not in " ".join(report["given"]["sentences"])
