"""vmalert, the evaluator of VictoriaMetrics, evaluates all rules without an error, and records the shares of a run."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support_day import VICTORIA_METRICS, Day, VictoriaMetrics
from support_history import History, Try
from support_ledgers import until
from support_prometheus import Prometheus
from support_promtool import needed

from whyidle.alerts import recording
from whyidle.alerts.config import DEFAULT
from whyidle.alerts.output import groups, to_yaml

VMALERT = shutil.which("vmalert")
pytestmark = [
    pytest.mark.skipif(not (VMALERT and VICTORIA_METRICS), reason="needs vmalert, of the package victoria-metrics"),
    pytest.mark.xdist_group("vmalert"),
]

SAVER = {"compute": 0.55, "network": 0.3, "checkpoint_write": 0.15}
WAITER = {"compute": 0.55, "network": 0.2, "data_read": 0.1, "straggler": 0.15}
FAMILIES = {"compute": 0.55, "network": 0.25, "storage": 0.125, "straggler": 0.075}
SHARES = "run_family:whyidle_share:ratio5m", "run_family:whyidle_charged:ratio5m"


class Vmalert(Prometheus):
    """A running vmalert."""

    def __init__(self, folder: Path, *options: str):
        self._start(folder, str(VMALERT), "-httpListenAddr=127.0.0.1:0", "-notifier.blackhole", *options)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VictoriaMetrics]:
    """It has what the agents of two nodes exported in the last 40 minutes."""
    running = VictoriaMetrics(tmp_path_factory.mktemp("server"))
    now = time.time() // 60 * 60
    history = History("live", now - 2400, now, [Try(60, 30, 3000, {0: SAVER, 1: WAITER}, ("n1", "n2"))])
    Day(running, history.began, history.now, []).scrape(history)
    yield running
    running.close()


@pytest.fixture(autouse=True, scope="module")
def knows_all_settings() -> None:
    """`keep_firing_for` is newer than the vmalert of Debian bookworm."""
    done = subprocess.run([str(VMALERT), "-help"], capture_output=True, text=True, check=False)
    if "-rule.evalDelay" not in done.stdout + done.stderr:
        pytest.skip("this vmalert does not know keep_firing_for")


def test_all_rules_are_evaluated_without_an_error(server: VictoriaMetrics, tmp_path: Path) -> None:
    every = [replace(group, interval="2s") for group in groups()]
    (tmp_path / "rules.yaml").write_text(to_yaml(every))
    at = (f"-datasource.url={server.url}", f"-remoteWrite.url={server.url}", "-rule.evalDelay=0s")
    running = Vmalert(tmp_path, f"-rule={tmp_path / 'rules.yaml'}", *at)
    try:
        until(lambda: all(rule["lastEvaluation"] > "0001-01-02" for rule in running.rules()))
        rules = running.rules()
        assert len(rules) == sum(len(group.rules) for group in every)
        assert {rule["name"]: rule["lastError"] for rule in rules if rule["health"] != "ok"} == {}
    finally:
        running.close()


def test_replays_the_shares_that_the_ranks_counted(server: VictoriaMetrics, tmp_path: Path) -> None:
    end = time.time() // 60 * 60 - 300
    begin, last = (datetime.fromtimestamp(at, timezone.utc).strftime("%FT%TZ") for at in (end - 1200, end))
    rules = tmp_path / "rules.yaml"
    command = [str(VMALERT), f"-rule={rules}", f"-datasource.url={server.url}", f"-remoteWrite.url={server.url}"]
    command += [f"-replay.timeFrom={begin}", f"-replay.timeTo={last}", "-replay.rulesDelay=0s"]
    for group in needed(recording.groups(DEFAULT), SHARES):
        for rule in group.rules:  # one by one: the server must know the results of a rule before the next one
            rules.write_text(to_yaml([replace(group, rules=(rule,))]))
            subprocess.run([*command, "-replay.disableProgressBar"], check=True, timeout=60)
            server.flush()
    for name in SHARES:
        assert server.values(f"{name} > 0", "family", end) == pytest.approx(FAMILIES, abs=0.005), name
