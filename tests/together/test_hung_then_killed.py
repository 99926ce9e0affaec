"""A rank that hung for two days and was then killed ended when it died: for the agent, its restarts and Prometheus."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support_agent import Agent, agent
from support_day import Writable, time_series
from support_ledgers import SECOND, Spec, children, until
from support_prometheus import PROMETHEUS
from support_training import command, ledgers_of, recorded, training

from whyidle.ledger.deaths import note_of
from whyidle.ledger.reader import read_ledger

pytestmark = pytest.mark.ages

DAY = 86400.0
STEP = {"compute": 0.5, "network": 0.1}
HUNG = Spec(steps=100, step=STEP, phase="collective", idle=2 * DAY)
KEEPS = ("--ledger.retention=2m", "--ledger.delete-after=1h")
SUM = "whyidle_run_device_seconds_total"


def in_ledgers(*paths: str) -> float:
    return sum(sum(read_ledger(path).words["cause_ns"]) for path in paths) / SECOND


def seen(running: Agent) -> tuple[list[float], float]:
    return running.values("whyidle_rank_up"), sum(running.values(SUM))


def age(path: str, seconds: float) -> None:
    """As if the rank had been found dead this many seconds ago."""
    at = time.time() - seconds
    os.utime(note_of(path), (at, at))


def test_its_series_and_its_ledger_stay(tmp_path: Path) -> None:
    with children(tmp_path, HUNG) as [rank], agent(tmp_path, *KEEPS) as running:
        total = pytest.approx(in_ledgers(rank.path))
        assert seen(running) == ([1], total)
        rank.kill()
        for _ in range(2):
            assert seen(running) == ([0], total)
    with agent(tmp_path, *KEEPS) as again:
        assert seen(again) == ([0], total)
        age(rank.path, 121)
        assert seen(again) == ([], 0)
        assert os.path.exists(rank.path)
    age(rank.path, 3601)
    with agent(tmp_path, *KEEPS):
        until(lambda: not os.path.exists(rank.path))


@pytest.mark.parametrize("stopped", [False, True])
def test_a_real_rank_is_down_after_its_death_whatever_it_hung_in(stopped: bool, tmp_path: Path) -> None:
    flags = ("--ledger.retention=1s", "--ledger.delete-after=2s")
    with training(recorded(command("ends.py", "sleeps")), tmp_path), agent(tmp_path / "ledgers", *flags) as running:
        until(lambda: running.values("whyidle_steps_total") == [20])
        rank = ledgers_of(tmp_path)[0]
        if stopped:
            os.kill(rank.visible_pid, signal.SIGSTOP)
        time.sleep(3)  # longer than the retention, and than ledgers are kept
        assert running.values("whyidle_rank_up") == [1]
        os.kill(rank.visible_pid, signal.SIGKILL)
        until(lambda: not read_ledger(rank.path).alive)
        assert running.values("whyidle_rank_up") == [0]
        assert running.values("whyidle_rank_killed") == [1]
        assert os.path.exists(rank.path)
        until(lambda: not os.path.exists(rank.path))


@pytest.mark.skipif(not PROMETHEUS, reason="needs prometheus, of the Debian package of that name")
def test_increases_over_the_day_are_the_sum_of_the_ledgers(tmp_path: Path) -> None:
    """It hangs when the day begins. It is killed, the agent restarts, and two more attempts follow."""
    names = (SUM, "whyidle_device_seconds_total")
    flags = ("--ledger.retention=11h", "--ledger.delete-after=24h")
    found: list[tuple[float, dict[tuple[tuple[str, str], ...], float]]] = []

    def scraped(hour: float) -> None:
        samples = ((name, labels, value) for name, labels, value in running.samples() if name in names)
        found.append((hour, {tuple({**labels, "__name__": name}.items()): value for name, labels, value in samples}))

    ledgers = tmp_path / "ledgers"
    with children(ledgers, HUNG) as [first]:
        with agent(ledgers, *flags) as running:
            scraped(0)
            first.kill()
            scraped(1)
        with agent(ledgers, *flags) as running:
            scraped(2)
            age(first.path, 2 * 3600)
            with children(ledgers, replace(HUNG, steps=50, attempt=1, idle=0.0)) as [second]:
                scraped(4)
            scraped(5)
        age(first.path, 10 * 3600)
        with children(ledgers, Spec(steps=200, step=STEP, attempt=2)) as [third], agent(ledgers, *flags) as running:
            scraped(12)
            total = in_ledgers(first.path, second.path, third.path)
    began = time.time() - DAY
    (tmp_path / "prometheus").mkdir()
    with contextlib.closing(Writable(tmp_path / "prometheus")) as server:
        ends = [hour for hour, _ in found[1:]] + [24.0]
        points: dict[tuple[tuple[str, str], ...], list[tuple[float, float | None]]] = {}
        for (begin, samples), end in zip(found, ends, strict=True):
            for labels, value in samples.items():
                at = (began + 3600 * begin + 60 * number for number in range(round(60 * (end - begin))))
                points.setdefault(labels, []).extend((round(moment, 3), value) for moment in at)
        server.write([time_series(dict(labels), of_one) for labels, of_one in points.items()])
        for name in names:
            now = began + DAY
            assert server.query(f"resets({name}[25h]) > 0", now) == []
            assert {sample.value for sample in server.query(f"count_over_time({name}[25h])", now)} == {24 * 60}
            before = server.value(f"sum({name})", began + 1)
            grown = server.value(f"sum(increase({name}[24h]))", now)
            assert before + grown == pytest.approx(total, rel=0.002)
