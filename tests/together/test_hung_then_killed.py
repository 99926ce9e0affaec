"""A rank that hangs for days and is then killed: its end is its death, and the counters of its run go on."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest
from support_agent import agent
from support_ledgers import Spec, children, ended, until
from support_prometheus import PROMETHEUS, prometheus

from whyidle.ledger.causes import CAUSES
from whyidle.ledger.directory import read_directory

pytestmark = pytest.mark.ages

DAY = 86400.0
STEPS = {"steps": 100, "step": {"compute": 0.5, "host": 0.1}}
HUNG = Spec(world_size=1, phase="collective", idle=3 * DAY, **STEPS)
"""It has had no heartbeat for a weekend: longer than the retention, and than ledgers are kept."""
SUM = 'sum(whyidle_run_device_seconds_total{run="r1"})'


def flags(port: int = 0, retention: str = "15m", delete_after: str = "24h") -> list[str]:
    ages = f"--ledger.retention={retention}", f"--ledger.delete-after={delete_after}"
    return [f"--web.listen-address=127.0.0.1:{port}", *ages]


def seconds(folder: Path) -> float:
    """The sum of all ledgers."""
    ledgers, _ = read_directory(str(folder))
    return sum(sum(ledger.cause_ns[cause] for cause in CAUSES) for ledger in ledgers) / 1e9


def test_is_down_after_its_death_and_its_ledger_stays(tmp_path: Path) -> None:
    with children(tmp_path, HUNG) as [child], agent(tmp_path, *flags()) as running:
        assert running.value("whyidle_rank_up") == 1
        child.kill()
        died = time.monotonic()
        while time.monotonic() - died < 12:
            assert running.value("whyidle_rank_up") == 0
            assert running.value("whyidle_rank_killed") == 1
            time.sleep(1)
        assert running.value("whyidle_steps_total") == 100
    with agent(tmp_path, *flags()) as again:  # it looks for ledgers to delete when it starts
        assert again.value("whyidle_rank_up") == 0
        time.sleep(1)
        assert os.path.exists(child.path)


def test_its_series_go_after_the_retention(tmp_path: Path) -> None:
    with children(tmp_path, HUNG) as [child], agent(tmp_path, *flags(retention="3s")) as running:
        assert running.value("whyidle_rank_up") == 1
        child.kill()
        assert running.value("whyidle_rank_up") == 0
        assert until(lambda: not running.values("whyidle_rank_up"))
        assert os.path.exists(child.path)


@pytest.mark.long
def test_its_ledger_stays_for_the_whole_time_after_its_death_and_no_longer(tmp_path: Path) -> None:
    seconds = 6.0
    with (
        children(tmp_path, HUNG) as [child],
        agent(tmp_path, *flags(retention="1s", delete_after=f"{seconds:.0f}s")) as running,
    ):
        assert running.value("whyidle_rank_up") == 1
        child.kill()
        died = time.monotonic()
        assert until(lambda: not os.path.exists(child.path))
        assert time.monotonic() - died >= seconds


@pytest.mark.skipif(not PROMETHEUS, reason="needs prometheus, of the Debian package of that name")
def test_the_counters_of_its_run_go_on_when_it_is_restarted_and_the_agent_too(tmp_path: Path) -> None:
    folder, database = tmp_path / "ledgers", tmp_path / "prometheus"
    folder.mkdir()
    database.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    with prometheus(database) as asked, children(folder, HUNG) as [child]:
        asked.scrape({address: {}})

        def seen(total: float) -> bool:
            return [round(one.value, 3) for one in asked.query(SUM)] == [round(total, 3)]

        first = seconds(folder)
        with agent(folder, *flags(port)):
            assert until(lambda: seen(first))
            child.kill()
            assert until(lambda: asked.query("whyidle_rank_up == 0"))
        # While no agent runs, the training starts again, ends, and starts a third time.
        ended(folder, Spec(world_size=1, attempt=1, **STEPS))
        with children(folder, Spec(world_size=1, attempt=2, **STEPS)):
            last = seconds(folder)
            assert last > first + 100
            with agent(folder, *flags(port)) as running:
                assert until(lambda: seen(last))
                time.sleep(2)
                assert seen(last)
                assert asked.value("sum(resets(whyidle_run_device_seconds_total[5m]))") == 0
                rank = 'sum(whyidle_device_seconds_total{rank="0"})'
                assert until(lambda: round(asked.value(rank), 3) == round(last, 3))
                assert asked.value("sum(resets(whyidle_device_seconds_total[5m]))") == 0
                assert running.value("whyidle_rank_up") == 1
        least = "sum(min_over_time(whyidle_run_device_seconds_total[5m]))"
        assert asked.value(f"sum(last_over_time(whyidle_run_device_seconds_total[5m])) - {least}") == pytest.approx(
            last - first
        )
