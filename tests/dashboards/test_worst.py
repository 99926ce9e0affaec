"""The nodes and ranks that lost most: a hidden variable finds them, and the panels read only those.

A real Prometheus has ten days of recorded series. What a panel shows must be what it would show if it read all series.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping

import pytest
from support_history import Series, backfill
from support_prometheus import Prometheus, prometheus
from support_queries import DASHBOARDS, Value, dashboard_queries, filled, fixed, listed

pytestmark = [
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus, of the Debian package"),
    pytest.mark.xdist_group("worst"),  # they share a server with much data
]

EVERY, HOUR, DAY = 300, 3600, 86_400
NOW = time.time() // EVERY * EVERY
PAGES = {path.stem.removeprefix("whyidle-"): path for path in DASHBOARDS}
RANGES = {"30m": HOUR // 2, "6h": 6 * HOUR, "1d": DAY, "7d": 7 * DAY, "10d": 10 * DAY}
WORST = "2"
AGREES = "node:whyidle_cpu_evidence:max5m"
LOST, LATE, SPENT = (
    *("node:whyidle_lost_seconds:increase", "run_rank:whyidle_late_seconds:increase"),
    "rank_cause:whyidle_device_seconds:increase",
)
RUN, HEALTHY, NEW = 'say "lr(2)|.*"', "healthy", "new"
"""Names of runs: one with characters that have a meaning, one whose ranks wait for nothing, and one without records."""


class Recorded:
    """Recorded series."""

    def __init__(self) -> None:
        self.series: Series = {}

    def increases(self, name: str, labels: str, value: float, begin: float, end: float = 0.0) -> None:
        """Adds a series of increases by ``value`` every 5 minutes, between two numbers of seconds before now."""
        moments = (NOW - ago for ago in range(int(begin), int(end) - 1, -EVERY))
        self.series[f"{name}{{{labels}}}"] = [(moment, value) for moment in moments]

    def hours(self, name: str, labels: str, *of: str, missed: int = 0, seconds: float = 1.0) -> None:
        """Adds the sums that are recorded once an hour, of some series. The last ``missed`` sums are left out."""
        points = [point for one in of for point in self.series[one]]
        moments = [NOW - ago + HOUR / 2 + 7 for ago in range(DAY * 11, 0, -HOUR)]
        sums = [(moment, sum(value for at, value in points if moment - HOUR < at <= moment)) for moment in moments]
        recorded = [(moment, seconds * total) for moment, total in sums if total]
        self.series[f"{name}_hourly{{{labels}}}"] = recorded[: len(recorded) - missed]


def nodes() -> Series:
    found = Recorded()
    for node, value, begin, end, missed in (
        ("steady", 60, 10 * DAY, 0, 0),
        ("past", 900, 5 * DAY, 4 * DAY, 0),
        ("missed", 880, 6 * DAY, 5 * DAY, 3),
        ("lately", 3000, 50 * 60, 0, 0),
        ("small", 1, 10 * DAY, 0, 0),
    ):
        of = f'cluster="old", node="{node}"'
        found.increases(LOST, of, value, begin, end)
        found.hours(LOST, of, f"{LOST}{{{of}}}", missed=missed)
    for node, value in (("n1", 5), ("n2", 7), ("n3", 6)):
        found.increases(LOST, f'cluster="young", node="{node}"', value, 20 * 60)
    for cluster, node, begin in (("old", "always", 10 * DAY), ("old", "half", 5 * DAY), ("young", "new", 20 * 60)):
        of = f'cluster="{cluster}", node="{node}", signal="cpus_busy"'
        found.increases(AGREES, of, 1, begin)
        if cluster == "old":
            found.hours("node:whyidle_evidence_seconds:increase", of, f"{AGREES}{{{of}}}", seconds=EVERY)
    return found.series


def ranks() -> Series:
    """Ranks that wait the longer the higher their number, and rank 3 most of all, some days ago. They wait for 0."""
    found = Recorded()
    run = f'cluster="old", owner="nlp", run={json.dumps(RUN)}'
    for rank in range(6):
        place = f'{run}, node="n{rank // 3}", rank="{rank}"'
        found.increases(SPENT, f'{place}, cause="compute", family="compute"', 200, 10 * DAY)
        waits = [f'{place}, cause="host", family="host"']
        found.increases(SPENT, waits[0], 10 + rank, 10 * DAY)
        if rank == 3:
            waits.append(f'{place}, cause="network", family="network"')
            found.increases(SPENT, waits[1], 290, 5 * DAY, 4 * DAY)
        found.hours("rank:whyidle_idle_seconds:increase", place, *(f"{SPENT}{{{labels}}}" for labels in waits))
    first = f'{run}, rank="0"'
    found.increases(LATE, first, 5, 10 * DAY)
    found.hours(LATE, first, f"{LATE}{{{first}}}")
    healthy = f'cluster="old", owner="nlp", run="{HEALTHY}", node="n3", rank="0"'
    found.increases(SPENT, f'{healthy}, cause="compute", family="compute"', 300, DAY)
    for rank in range(3):
        new = f'cluster="old", owner="nlp", run="{NEW}", node="n4", rank="{rank}"'
        found.increases("whyidle_rank_info", new, 1, 0)
        found.increases("whyidle_phase_open_seconds", f'{new}, phase="startup"', 9, 0)
    return found.series


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("worst")
    backfill(folder, nodes(), ranks())
    with prometheus(folder) as running:
        yield running


def variables(server: Prometheus, page: str, length: str, chosen: Mapping[str, Value]) -> dict[str, Value]:
    """The variables of a page over a time range. Those in ``chosen`` are not asked for."""
    times = {"__range": length, "__range_s": str(RANGES[length]), "__interval": "5m", "__interval_ms": "300000"}
    times["__rate_interval"] = "5m"
    found: dict[str, Value] = {**times, **fixed(PAGES[page]), "worst": WORST, **chosen}
    for one in listed(PAGES[page]):
        if one.name not in found:
            samples = server.query(filled(one.expression, found), NOW)
            values = one.values((sample.labels, f"{sample.value:g}") for sample in samples)
            found[one.name] = values if one.several else next(iter(values), "")
    return found


def query(page: str, where: str) -> str:
    [found] = [one.expression for one in dashboard_queries(PAGES[page]) if one.where == where]
    return found


@pytest.mark.parametrize("length", RANGES)
@pytest.mark.parametrize("cluster", ["old", "young"])
def test_the_nodes_that_lost_most_and_their_hours_are_those_of_all_increases(
    server: Prometheus, cluster: str, length: str
) -> None:
    """Also on a server with minutes of history, within the last hour, and if sums of hours are missing."""
    asked = filled(
        query("fleet", "Nodes by what they lost A"), variables(server, "fleet", length, {"cluster": cluster})
    )
    of_all = f'topk({WORST}, sum by (node) (sum_over_time({LOST}{{cluster="{cluster}"}}[{length}]))) / 3600'
    expected = server.values(of_all, "node", NOW)
    assert len(expected) == int(WORST)
    assert server.values(asked, "node", NOW) == pytest.approx(expected)


@pytest.mark.parametrize(("length", "half"), [("6h", 1.0), ("1d", 1.0), ("7d", 5 / 7), ("10d", 0.5)])
def test_signals_have_the_share_of_the_time_range_in_which_they_agreed(
    server: Prometheus, length: str, half: float
) -> None:
    where = "Nodes with most signals, and with slow links A"
    asked = filled(query("fleet", where), variables(server, "fleet", length, {"cluster": "old"}))
    assert server.values(asked, "node", NOW) == pytest.approx({"always": 1.0, "half": half}, abs=0.02)
    young = filled(query("fleet", where), variables(server, "fleet", length, {"cluster": "young"}))
    assert server.value(young, NOW) == pytest.approx(20 * 60 / RANGES[length], rel=0.3)


@pytest.mark.parametrize(("length", "shown"), [("30m", "045"), ("1d", "045"), ("7d", "035"), ("10d", "035")])
def test_the_ranks_that_wait_most_are_drawn_and_the_rank_that_they_wait_for(
    server: Prometheus, length: str, shown: str
) -> None:
    assert drawn(server, RUN, length, "Who waits A") == {*shown}


def test_only_the_chosen_nodes_and_ranks_are_drawn(server: Prometheus) -> None:
    assert drawn(server, RUN, "1d", "Who waits A", node=["n0"]) == {"0", "1", "2"}
    assert drawn(server, RUN, "1d", "Who waits A", rank=["1", "3"]) == {"1", "3"}


def test_a_run_that_waits_for_nothing_has_an_empty_panel(server: Prometheus) -> None:
    assert drawn(server, HEALTHY, "1d", "Who waits A") == set()


@pytest.mark.parametrize("length", ["30m", "7d"])
def test_some_ranks_of_a_new_run_are_drawn_before_their_seconds_are_recorded(server: Prometheus, length: str) -> None:
    assert len(drawn(server, NEW, length, "What each rank was doing A")) == int(WORST)


def drawn(server: Prometheus, run: str, length: str, where: str, **chosen: Value) -> set[str]:
    """The ranks that a panel of the page of a run draws."""
    of: dict[str, Value] = {"cluster": "old", "owner": "nlp", "run": run, "node": ".*", "rank": ".*"}
    asked = filled(query("run", where), variables(server, "run", length, of | chosen))
    return {labels["rank"] for labels, _ in server.range(asked, NOW - RANGES[length], NOW, RANGES[length] / 30)}


def test_a_hidden_variable_reads_any_name() -> None:
    [losing] = [one for one in listed(PAGES["fleet"]) if one.name == "losing"]
    names = ['say "hi"', 'n="1"} 2 3', "a|b", "{}", "é"]
    assert losing.values(({"node": name}, "1") for name in names) == names
