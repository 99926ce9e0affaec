"""How much CPU time a rank did not get: the steal of the CPUs that it may use, and the queue of its training thread."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from whyidle.torch_hooks.meters import shortage
from whyidle.torch_hooks.meters.shortage import ShortageMeter, stolen_of
from whyidle.torch_hooks.tasks import TaskClock

TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
BOTH = frozenset((b"cpu0", b"cpu1"))
STAT = b"""cpu  300 0 30 3000 9 3 3 60 5 0
cpu0 100 0 10 1000 3 1 1 40 5 0
cpu1 200 0 20 2000 6 2 2 20 0 0
intr 1 2 3
cpu9 1 1 1 1 1 1 1 1 1 1
"""


def test_idle_time_was_not_asked_for_and_guests_are_part_of_user_time() -> None:
    assert stolen_of(STAT, BOTH) == ((152 + 244) * TICK, 60 * TICK)


@pytest.mark.parametrize(
    ("stat", "cpus"),
    [
        (STAT, frozenset((b"cpu9",))),
        (STAT, frozenset()),
        (b"", BOTH),
        (b"cpu 1 2\ncpu0 1 2 3\n", BOTH),  # Linux 2.6.10 and older have no steal
    ],
)
def test_cpus_that_are_not_there_are_not_known(stat: bytes, cpus: frozenset[bytes]) -> None:
    assert stolen_of(stat, cpus) == (0, 0)


def of_all(user: int, steal: int) -> str:
    return "".join(f"cpu{cpu} {user} 0 0 50 0 0 0 {steal} 0 0\n" for cpu in os.sched_getaffinity(0))


def test_reads_what_has_grown_since_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat, cpus = tmp_path / "stat", len(os.sched_getaffinity(0))
    monkeypatch.setattr(shortage, "STAT", str(stat))
    stat.write_text(of_all(100, 20))
    meter = ShortageMeter(TaskClock(os.getpid(), threading.get_native_id()))
    stat.write_text(of_all(130, 30))
    asked, stolen, queued = meter.read()
    assert (asked, stolen) == (40 * TICK * cpus, 10 * TICK * cpus)
    assert queued >= 0
    stat.write_text(of_all(160, 10))  # as after a move to another host
    assert meter.read()[:2] == (0, 0)
    stat.unlink()
    assert meter.read()[:2] == (0, 0)


def test_a_meter_without_a_first_reading_knows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(shortage, "STAT", str(stat))
    meter = ShortageMeter(TaskClock(os.getpid(), threading.get_native_id()))
    stat.write_text(of_all(130, 30))
    assert meter.read()[:2] == (0, 0)
