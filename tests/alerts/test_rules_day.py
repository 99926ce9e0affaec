"""A day on a real Prometheus, and on a VictoriaMetrics that gets the queries of vmalert: bill and shares agree with the
ledgers, although the server was down twice, a node was replaced and the run restarted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support_day import SERVERS, Day
from support_history import SCRAPE, History, Try
from support_ledgers import ended
from support_prometheus import Prometheus
from support_promtool import needed

from whyidle.advisor.goodput import goodput
from whyidle.alerts import recording
from whyidle.alerts.config import DEFAULT
from whyidle.cli.main import main
from whyidle.cli.prometheus import runs
from whyidle.ledger.causes import CAUSE_FAMILY
from whyidle.ledger.directory import read_directory
from whyidle.verdict.accounts import RunAccount, account

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("day")]

DAY, HOUR = 86_400.0, 3600.0
SAVER = {"compute": 0.55, "network": 0.3, "checkpoint_write": 0.1, "checkpoint_cpu": 0.05}
WAITER = {"compute": 0.55, "network": 0.2, "data_read": 0.1, "straggler": 0.15}
STEP = {rank: WAITER if rank else SAVER for rank in range(4)}
REPEATED = 1705  # of 25,000 steps: the share of `recompute` in AGAIN
AGAIN = {
    rank: {**step, "compute": step["compute"] - 0.05, "recompute": 0.05} if rank else step
    for rank, step in STEP.items()
}
NODES = ("n1", "n1", "n2", "n2")
TRIES = [
    Try(600, 130, 30_000, STEP, NODES, saves=300),
    # A node is replaced. Agents still have the series of the ended ranks.
    Try(31_700, 100, 25_000, AGAIN, ("n1", "n1", "n3", "n3"), saves=250, number=1, attach=45, repeated=REPEATED),
    Try(57_100, 40, 20_000, STEP, ("n1", "n1", "n3", "n3"), saves=200, number=2, attach=25),
]
DOWN = (20_000.0, 20_300.0), (40_000.0, 40_240.0)
"""When the server is down. In the first case, its last evaluation is six minutes old when it is back."""
LOOKS = {"before the first restart": 18_000.0, "after it was down": 42_000.0, "near the end": 76_000.0}
"""Moments at which the shares of the last hour are compared."""
WITHIN = 0.001

BILL, SHARE = "run_family:whyidle_billed_seconds:increase", "run_family:whyidle_share:ratio1h"
CHARGED, FLEET = "run_family:whyidle_charged:ratio1h", "cluster_family:whyidle_billed_seconds:increase"
FOR_GOODPUT = (
    *("run_node_cause:whyidle_device_seconds:increase", "rank_cause:whyidle_device_seconds:increase"),
    *("run:whyidle_ranks:count", "run:whyidle_step_seconds_bucket:rate5m"),
)


@pytest.fixture(scope="module")
def day() -> History:
    return History("day", began := (time.time() - DAY) // 60 * 60, began + DAY, TRIES)


@pytest.fixture(scope="module")
def whole(day: History, tmp_path_factory: pytest.TempPathFactory) -> RunAccount:
    """As `whyidle report` reads it from the ledgers of all nodes."""
    folder = tmp_path_factory.mktemp("ledgers")
    ended(folder, *day.specs())
    return account(("lab", "day"), read_directory(str(folder), steps=True)[0], 0)


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, day: History, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """It restarts after all has been written, so it reads its log."""
    program, start = SERVERS[request.param]
    if program is None:
        pytest.skip(f"{request.param} is not installed")
    folder = tmp_path_factory.mktemp("server")
    first = start(folder)
    try:
        record = Day(first, day.began, day.now, [(day.began + gone, day.began + back) for gone, back in DOWN])
        record.scrape(day)
        record.evaluate(needed(recording.groups(DEFAULT), [BILL, SHARE, CHARGED, FLEET, *FOR_GOODPUT]))
    finally:
        first.close()
    running = start(folder)
    yield running
    running.close()


def families(seconds: dict[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for cause, spent in seconds.items():
        found[CAUSE_FAMILY[cause]] = found.get(CAUSE_FAMILY[cause], 0.0) + spent
    return found


def counted(day: History, moment: float) -> dict[str, float]:
    """What all ranks have counted until the last scrape before a moment, by family."""
    at = moment - moment % SCRAPE
    total: dict[str, float] = {}
    for one in day.tries:
        for rank in range(len(one.nodes)) if one.start + one.attach <= at else ():
            for cause, seconds in one.counted(rank, at).items():
                total[cause] = total.get(cause, 0.0) + seconds
    return families(total)


@pytest.mark.parametrize("bill", [BILL, FLEET])
def test_the_bill_of_a_day_agrees_with_the_report(
    server: Prometheus, day: History, whole: RunAccount, bill: str
) -> None:
    startup = sum(rank.startup for rank in whole.ranks)
    truth = {name: seconds for name, seconds in whole.family_seconds().items() if seconds}
    truth["host"] = truth.get("host", 0.0) + startup
    found = server.values(f"sum by (family) (sum_over_time({bill}[{DAY:.0f}s])) > 0", "family", day.now)
    assert found == pytest.approx(truth, rel=WITHIN)


@pytest.mark.parametrize("moment", LOOKS.values(), ids=LOOKS)
def test_the_shares_of_an_hour_agree_with_the_counters(server: Prometheus, day: History, moment: float) -> None:
    now, before = counted(day, moment), counted(day, moment - HOUR)
    spent = {family: seconds - before.get(family, 0.0) for family, seconds in now.items()}
    truth = {family: seconds / sum(spent.values()) for family, seconds in spent.items() if seconds}
    for name in (SHARE, CHARGED):
        found = server.values(f"{name} > 0", "family", day.began + moment + 40)
        assert found == pytest.approx(truth, abs=WITHIN), name


def test_goodput_computes_as_long_as_in_the_ledgers(
    server: Prometheus,
    day: History,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended(tmp_path, *day.specs())
    truth = goodput(("lab", "day"), read_directory(str(tmp_path), steps=True)[0], time.monotonic_ns())
    monkeypatch.setattr(runs, "time", SimpleNamespace(time=lambda: day.now))
    assert main(["goodput", "day", "--prometheus", server.url, "--since", "24h", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seconds"]["stalled"] == 0, "the run stood still while the server was down"
    assert found["computed_seconds"] == pytest.approx(truth.computed, rel=WITHIN)
