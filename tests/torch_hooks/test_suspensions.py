"""What was not allowed to run is suspended: in every phase, within a tenth of a second, and nothing else is.

Beside other tests the cores are busy: then it is known to half a second."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from simdevice import build
from support_long import long_unless
from support_training import command, ledgers_of, recorded, sum_of_causes, training, until

from whyidle.ledger.directory import run_of
from whyidle.ledger.reader import Ledger
from whyidle.verdict.report import build_report

WITHIN = 0.1
WITHIN_BUSY = 0.5


def suspended(ledger: Ledger) -> float:
    return ledger.cause_ns["suspended"] / 1e9


def stop(pid: int, seconds: float) -> float:
    """Stops a process for a while. Returns for how long."""
    begun = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)
    return time.monotonic() - begun


@contextmanager
def steps(
    folder: Path, phase: str, seconds: float, ranks: int = 0, **env: str
) -> Iterator[Callable[[], dict[int, Ledger]]]:
    """A training that makes steps. Yields how to end it: that returns its ledgers.

    Its watcher may take three times as much as usual. On a slow machine it sleeps longer otherwise than the process is
    stopped, and such a stop is not seen.
    """

    def end() -> dict[int, Ledger]:
        (folder / "stop").touch()
        process.wait(60)
        return ledgers_of(folder)

    env = {"WHYIDLE_WATCHER_SHARE": "0.003", **env}
    with training(recorded(command("suspended.py", phase, str(seconds), ranks=ranks)), folder, **env) as process:
        assert until(lambda: (found := ledgers_of(folder)) and all(one.steps > 2 for one in found.values()))
        time.sleep(1)
        yield end


def pid_of(folder: Path, rank: int = 0) -> int:
    return ledgers_of(folder)[rank].visible_pid


@pytest.mark.alone
@pytest.mark.parametrize("seconds", long_unless([1.0], [0.02, 1.0]), ids=["many steps a second", "long phases"])
@pytest.mark.parametrize("phase", long_unless(["compute"], ["compute", "data", "host", "checkpoint"]))
def test_a_stopped_rank_is_suspended_whatever_it_does(phase: str, seconds: float, tmp_path: Path) -> None:
    with steps(tmp_path, phase, seconds) as end:
        truth = stop(pid_of(tmp_path), 1.5)
        time.sleep(1.5)
        truth += stop(pid_of(tmp_path), 2.5)
        time.sleep(0.5)
        ledger = end()[0]
    assert suspended(ledger) == pytest.approx(truth, abs=2 * WITHIN)
    assert sum_of_causes(ledger) == ledger.until_ns - ledger.start_ns


@pytest.mark.skipif(build.lacks() is not None, reason=f"no simulated device: {build.lacks()}")
@pytest.mark.long
@pytest.mark.parametrize("phase", ["compute", "data", "host"])
def test_a_device_whose_rank_is_stopped_is_suspended(phase: str, tmp_path: Path) -> None:
    with steps(tmp_path, phase, 0.1, ON="sim") as end:
        truth = stop(pid_of(tmp_path), 2.0)
        time.sleep(1.0)
        ledger = end()[0]
    assert ledger.device == "sim:0"
    assert suspended(ledger) == pytest.approx(truth, abs=WITHIN_BUSY)
    assert sum_of_causes(ledger) == ledger.until_ns - ledger.start_ns


@pytest.mark.long
@pytest.mark.parametrize("phase", ["compute", "collective"])
def test_ranks_that_wait_for_a_stopped_rank_lose_their_time_to_it(phase: str, tmp_path: Path) -> None:
    with steps(tmp_path, phase, 0.05, ranks=2) as end:
        truth = stop(pid_of(tmp_path), 12.0)
        time.sleep(6.0)
        ledgers = end()
    assert suspended(ledgers[0]) == pytest.approx(truth, abs=WITHIN_BUSY)
    assert suspended(ledgers[1]) == 0
    report: dict[str, Any] = build_report(run_of(ledgers[0]), [*ledgers.values()], time.monotonic_ns())
    verdict = report["verdict"]
    assert (verdict["family"], verdict["late_ranks"][0]["rank"]) == ("lost", 0)
    assert report["explained"]["lost"] > 1.7 * truth
    assert "somebody stopped, froze or paused it" in verdict["summary"]


def test_a_frozen_rank_is_suspended(tmp_path: Path) -> None:
    freezer = Path("/sys/fs/cgroup/freezer")
    if not (os.access(freezer, os.W_OK) and (freezer / "cgroup.procs").exists()):
        pytest.skip("needs root and the freezer of cgroup v1")
    group = freezer / f"whyidle-test-{os.getpid()}"
    group.mkdir()
    try:
        with steps(tmp_path, "host", 1.0) as end:
            pid = pid_of(tmp_path)
            (group / "cgroup.procs").write_text(str(pid))
            begun = time.monotonic()
            (group / "freezer.state").write_text("FROZEN")
            time.sleep(2)
            (group / "freezer.state").write_text("THAWED")
            truth = time.monotonic() - begun
            time.sleep(1)
            (freezer / "cgroup.procs").write_text(str(pid))
            ledger = end()[0]
        assert suspended(ledger) == pytest.approx(truth, abs=WITHIN_BUSY)
    finally:
        (group / "freezer.state").write_text("THAWED")
        until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@pytest.mark.parametrize("phase", long_unless(["queue"], ["lock", "queue"]))
def test_waits_for_pythons_lock_and_for_a_cpu_do_not_count_as_suspensions(phase: str, tmp_path: Path) -> None:
    """A C function that sleeps and keeps Python's lock looks like a suspension to other Python threads. So does a rank
    that shares a CPU with many others."""
    with steps(tmp_path, phase, 1.0) as end:
        time.sleep(5)
        ledger = end()[0]
    assert suspended(ledger) < WITHIN_BUSY  # a hypervisor may pause the machine


def test_a_stopped_data_worker_is_not_a_suspension(tmp_path: Path) -> None:
    with steps(tmp_path, "data", 0.05) as end:
        [worker] = psutil.Process(pid_of(tmp_path)).children()
        stop(worker.pid, 2.0)
        ledger = end()[0]
    assert suspended(ledger) == 0
    assert ledger.cause_ns["data_read"] > 1.5e9
