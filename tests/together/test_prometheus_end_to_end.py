"""A real Prometheus scrapes real agents while real jobs run with a known fault: what it records must name the fault.

The job trains for 85 s with slow storage on one rank. With WHYIDLE_TEST_EVERY_FAULT=1, it runs with every fault in
turn (test_demo.py has the verdicts of the other faults, test_rules_alerts.py their alerts). Prometheus also scrapes
the whole simulated node, so that series of GPUs, RDMA and NFS exist.

Report and Prometheus read the same ledgers, so these tests run beside others: on busy cores both see a slower job.

Every alert waits for 5 s instead of minutes, and every rule is evaluated each second, with windows to match. Otherwise
the rules are those that `whyidle rules` writes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from fake_node.kernel import COMPILER
from fake_node.moving import moving
from fake_node.whole import LINKS, MOUNTS, NODE, whole
from support_agent import Agent
from support_demo import Demo, machine, names_what_was_injected
from support_ledgers import Spec, children, until
from support_prometheus import (
    EVERY_SECOND,
    FAMILY_ALERT,
    PROMETHEUS,
    SHIPPED,
    Prometheus,
    Sample,
    alert_name,
    finite,
    prometheus,
    rules,
)
from support_queries import (
    DASHBOARDS,
    RULES,
    Query,
    Value,
    dashboard_queries,
    filled,
    fixed,
    listed,
    looking_often,
    rule_queries,
    selectors,
    without_thresholds,
)
from support_quiet import Stolen

from whyidle.alerts.config import Config
from whyidle.cli.main import main
from whyidle.ledger.causes import CAUSE_FAMILY, CAUSES, FAMILIES

pytestmark = [
    pytest.mark.skipif(not PROMETHEUS, reason="needs prometheus, of the Debian package of that name"),
    pytest.mark.skipif(not COMPILER, reason="needs a C compiler for the libraries under the fake node"),
    pytest.mark.alone,  # the verdict compares the delay with what other programs take of the CPUs
]

TRAINED_SECONDS = 85
"""Longer than everything below takes. On busy cores, a report alone takes seconds."""
WINDOW_SECONDS = 60
SETTLED_SECONDS = 3
"""After the first step, before the window begins."""
STOLEN = 0.2
"""If this share of the CPU time is taken away, two ranks and everything that observes them prove nothing about the
rules."""
STALE_SECONDS = 3.0
"""If Prometheus had nothing newer at an end of the window, its window is not that of the reports. On busy cores scrapes
take longer than the second that they have here, and the loop's first seconds are not like the rest."""
WITHIN = 0.02
"""How far recorded shares of the wall time may be from those of `whyidle report`."""
LOOKED_THROUGH_WITHIN = 0.06
"""The same for shares after the look-through. The ranks tell each other what made them late some blocks later, and a
short run ends before the last blocks. The report solves it exactly."""
DUE = "collective"
"""The report counts waits in collectives under this until they are split, some steps later. Prometheus has them only
after the split, so they are left out of the comparison."""
CLUSTER = "lab"
EVERY_FAULT = "WHYIDLE_TEST_EVERY_FAULT"


@dataclass(frozen=True)
class Fault:
    name: str
    arguments: tuple[str, ...]
    family: str
    alert: str
    late: int | None = None
    """The rank that the others wait for."""
    always: bool = False  # in every test run, not only with all faults


FAULTS = {
    fault.name: fault
    for fault in (
        # Slow storage on one rank: the others wait for it, and the verdict must look through that. The delay is longer
        # than the compute of a step even if other programs take most of the CPU time.
        Fault(
            "storage",
            ("--inject-rank", "1", "--inject-delay", "280"),
            "storage",
            "WhyidleLostTo/storage",
            late=1,
            always=True,
        ),
        Fault("network", (), "network", "WhyidleLostTo/network"),
        Fault("cpu", (), "cpu", "WhyidleLostTo/cpu"),
        Fault("straggler", (), "straggler", "WhyidleLostTo/straggler", late=1),
        Fault("checkpoint", (), "storage", "WhyidleLostTo/storage"),
    )
}
OBSERVED = [fault.name for fault in FAULTS.values() if fault.always or os.environ.get(EVERY_FAULT)]

_STEPS = Spec(
    run="hung",
    steps=64,
    step={"compute": 0.0625, "network": 0.03125},
    op_bytes={"all_reduce": 1 << 30},
    mounts=MOUNTS,
    links=LINKS,
    growing=True,
)
HUNG = (
    replace(_STEPS, rank=0, node="n1", phase="collective", idle=1000, collectives=65),
    replace(_STEPS, rank=1, node="n2", phase="host", idle=1001, collectives=64),
)
"""A run on two nodes: rank 0 waits in a collective that rank 1 does not enter."""

RANGE = {"__rate_interval": "1m", "__interval": "15s", "__interval_ms": "15000", "__range": "10m", "__range_s": "600"}
"""Values that Grafana fills in."""
HURRIED = Config(
    interval=EVERY_SECOND, details_interval=EVERY_SECOND, ranks_interval=EVERY_SECOND, counters_interval=EVERY_SECOND
)
LOOKS = "5s"
"""The step of subqueries: with their usual 10 minutes, they would find nothing in this test."""

NO_SERIES: dict[str, str] = {
    "whyidle_rank_killed": "all ranks live when they are looked at",
    "whyidle_rank_failed": "all ranks live when they are looked at",
    "whyidle_rank_out_of_memory": "all ranks live when they are looked at",
    "whyidle_rank_unused_gpus": "no rank was given GPUs that it leaves alone",
    "whyidle_run_spare_gpus": "the ranks were not asked how many GPUs they see",
    "whyidle_nic_pause_storms_total": "sparse, and no adapter of the fake node was stormed",
    "whyidle_nic_priority_discards_total": "sparse, and no adapter of the fake node discarded by priority",
}
"""Metric -> why it has no series in this test. A query on it may be empty. A series of it fails the test."""
QUIET: dict[str, str] = {
    "whyidle_disk_flushes_total": "the temporary directory is in memory, and no disk was flushed",
    "whyidle_disk_discards_total": "no file on a disk was removed, or its file system does not discard",
}
"""Counter -> why it may stand still. A query on it may be empty if it does."""
EMPTY: dict[str, str] = {
    "WhyidleAgentAbsent": "an agent is there",
    "WhyidleAgentDown": "as info: ranks live wherever an agent was",
    "run_node:whyidle_unknown:group": "every agent has been there for more than a minute",
    "run_node:whyidle_unknown_ranks:group": "every agent has been there for more than a minute",
    "rank_cause:whyidle_device_seconds:increase": "as sampled: no GPU's own counters saw launch gaps",
    "run_node_cause:whyidle_device_seconds:total": "as sampled: no GPU's own counters saw launch gaps",
    "WhyidleUnattributed": "every second is explained",
    "WhyidleGoodputLow": "without its threshold, the share of unused ranks leaves no run",
    "run:whyidle_unused_gpu_seconds:increase": "no rank was given GPUs that it leaves alone",
    "WhyidleCollectiveStuck": "no run hangs",
    "WhyidleHookFailed": "no hook failed",
    "WhyidleRunIdle": "every run started within the last half hour",
    "WhyidleRdmaLinkDown": "no link is down",
    "port:whyidle_rdma_port_lost:last_seconds": "no link is down",
    "WhyidleNicLinkDown": "no link is down",
    "WhyidleCheckpointSpaceLow": "no file system is nearly full",
    "WhyidleFilesystemReadOnly": "no file system has become read-only",
    "mount:whyidle_filesystem_turned_readonly:used": "no file system has become read-only",
    "WhyidleGpuAllocatedIdle": "every GPU that somebody has is busy",
    "WhyidleGpuGone": "no GPU went",
    "WhyidleGpuLost": "as a warning: every node with GPUs runs ranks",
    "WhyidleGpuService": "as a warning: every node with GPUs runs ranks",
    "WhyidleGpuXid": "no GPU reports another XID than 79",
    "WhyidleRdmaPortGone": "no adapter went",
    "annotation Restarts": "no rank was started again",
    "Unexplained time A": "every second is explained",
    "Hooks that failed, and errors that they caught A": "no hook failed",
    **{f"Rules of whyidle in Prometheus {letter}": "Prometheus does not scrape itself" for letter in "ABCD"},
    "annotation Starts": "no run starts when it is looked at",
    "annotation Drains": "no kube-state-metrics is here",
    "annotation Deployments": "no agent is replaced",
    "Allocated and idle A": "every GPU that somebody has is busy",
    "GPU-hours lost, by family B": "every GPU that a run was given is used",
    "Goodput B": "a week ago there was nothing",
    "Counters of the nodes that agree A": "no verdict is network",
    "Counters of the nodes that agree C": "a sleep in a worker is the storage here, and no counter sees it",
    "Counters of the nodes that agree E": "no verdict is cpu",
    "run_family:whyidle_contradicted:ratio5m": "no counter contradicts a verdict",
    "Runs by idle GPUs I": "no counter contradicts a verdict",
    "Counters of the nodes that agree G": "no counter contradicts a verdict",
    "Counters of the nodes that agree H": "the ranks get the CPUs that they ask for",
    "Counters of the nodes that agree I": "the ranks get the CPUs that they ask for",
    "rank:whyidle_cpu_queued:rate5m": "the ranks get the CPUs that they ask for",
    "node:whyidle_cpu_evidence:max5m": "as ranks_queued: the ranks get the CPUs that they ask for",
    "run:whyidle_cpu_shortage:rate5m": "the ranks get the CPUs that they ask for",
    "run_family:whyidle_shortage:ratio5m": "the ranks get the CPUs that they ask for",
    "run:whyidle_transfer_busbw_bytes:rate5m": "the only run on two nodes hangs, and moves nothing",
    "run:whyidle_transfer_busbw_bytes:best": "the only run on two nodes hangs, and moves nothing",
    "run_group:whyidle_link_bytes:limit": "the ranks of each group are on one node",
    "run_group:whyidle_transfer_busbw_bytes:rate5m": "the ranks of each group are on one node",
    "run_group:whyidle_transfer_busbw_bytes:best": "the ranks of each group are on one node",
    "Bus bandwidth against the link B": "the only run on two nodes hangs, and moves nothing",
    "Bus bandwidth against the link C": "the only run on two nodes hangs, and moves nothing",
    "node_adapter:whyidle_traffic_bytes:rate": "as mount and rest: nobody reads from a file server",
    "node_adapter:whyidle_traffic:ratio": "as storage: nobody reads from a file server",
    "node_adapter:whyidle_collision:ratio": "nobody reads from a file server",
    "GPU and storage traffic: do they collide? B": "nobody reads from a file server",
    "GPU and storage traffic: do they collide? C": "nobody reads from a file server",
}
"""An alert, a panel with its query's letter, or similar -> why it is empty in this test even without thresholds."""


@dataclass(frozen=True)
class Place:
    """Where and when to look: values of a dashboard's variables, and Unix time."""

    chosen: Mapping[str, Value] = field(hash=False)
    at: float


@dataclass
class Run:
    """A job that was observed: what the report and Prometheus say about the same moment."""

    fault: Fault
    before: dict[str, Any]  # the report, a window earlier
    report: dict[str, Any]  # and at the end of the window
    reported: float = 0.0  # when the report was made, Unix time
    scraped: float = 0.0  # when Prometheus had scraped the same
    at: float = 0.0  # when its rules had been evaluated for that time, and more blocks of waits were split
    alerts: list[dict[str, Any]] = field(default_factory=list)  # at that time
    stolen: float = 0.0  # share of the CPU time that the hypervisor gave to others in the window
    outcome: dict[str, Any] = field(default_factory=dict)  # the demo's own report

    @property
    def name(self) -> str:
        return self.report["run"]

    @property
    def node(self) -> str:
        return self.report["per_rank"][0]["node"]

    @property
    def place(self) -> Place:
        return Place({"owner": self.report["owner"], "run": self.name, "node": self.node}, self.at)

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the window by cause, from the difference of the two reports."""
        now, then = self.report["seconds"], self.before["seconds"]
        spent = {cause: now[cause] - then[cause] for cause in CAUSES if cause != DUE}
        return {DUE: 0.0, **{cause: seconds / sum(spent.values()) for cause, seconds in spent.items()}}

    @property
    def verdict_share(self) -> float:
        """The verdict's share of the time since the first step."""
        verdict, wall, due = self.report["verdict"], self.report["rank_seconds"], self.report["seconds"][DUE]
        return (verdict["share"] * wall - (due if verdict["family"] == CAUSE_FAMILY[DUE] else 0.0)) / (wall - due)

    @property
    def families(self) -> dict[str, float]:
        """The same by family."""
        shares = dict.fromkeys(FAMILIES, 0.0)
        for cause, share in self.shares.items():
            shares[CAUSE_FAMILY[cause]] += share
        return shares


class World:
    """Prometheus, the agents of simulated nodes, and the jobs that tests ask for, each run once."""

    def __init__(self, folder: Path, server: Prometheus, *fakes: Agent):
        self.server = server
        self._folder, self._fakes = folder, fakes
        self._runs: dict[str, Run] = {}

    @property
    def fakes(self) -> str:
        """A pattern for the addresses of the simulated nodes' agents."""
        return "|".join(fake.address for fake in self._fakes)

    def run(self, name: str) -> Run:
        if name not in self._runs:
            self._runs[name] = self._observe(FAULTS[name])
        run = self._runs[name]
        if run.stolen > STOLEN:
            pytest.skip(f"the hypervisor took {run.stolen:.0%} of this machine's CPU time away")
        return run

    def behind(self, run: Run) -> str:
        """How old what Prometheus had at the ends of the window was. Skips a comparison with the reports if it was too
        old."""
        found = []
        for end in (run.scraped - WINDOW_SECONDS, run.scraped):
            of = f'{{run="{run.name}"}}'
            recorded = self.server.value(f"min(timestamp(run_node_cause:whyidle_device_seconds:total{of}))", end)
            scraped = self.server.value(f"min(timestamp(whyidle_run_device_seconds_total{of}))", recorded)
            found.append(end - scraped)
        text = (
            f"at the ends of its window, Prometheus was {found[0]:.1f} and {found[1]:.1f} s behind; "
            f"the window ends {run.scraped - run.reported:.1f} s after that of the reports"
        )
        if max(found) > STALE_SECONDS:
            pytest.skip(text)
        return text

    def look(self, query: str, run: Run) -> list[Sample]:
        return self.server.query(query, run.at)

    def scrape(self, *others: str) -> None:
        addresses = (*(fake.address for fake in self._fakes), *others)
        self.server.scrape({address: {"cluster": CLUSTER} for address in addresses})

    def _observe(self, fault: Fault) -> Run:
        folder = self._folder / fault.name
        folder.mkdir()
        demo = Demo(folder, "--seconds", str(TRAINED_SECONDS), "--json", "--inject", fault.name, *fault.arguments)
        try:
            self.scrape(until(demo.agent))
            until(lambda: self.server.query(f'whyidle_steps_total{{run=~".*{fault.name}"}} > 0'))
            time.sleep(SETTLED_SECONDS)
            begun = time.monotonic()
            before = _report(demo)
            with Stolen() as stolen:
                time.sleep(begun + WINDOW_SECONDS - time.monotonic())
            reported = time.time()
            run = Run(fault, before, _report(demo), reported, stolen=stolen.share)
            run.scraped = self._seen(run.report)
            run.at, run.alerts = time.time(), self.server.alerts()
            assert demo.training(), "the training ended before Prometheus was asked"
            code, out, err = demo.finish()
        finally:
            demo.kill()
            self.scrape()
        assert code == 0, err
        run.outcome = json.loads(out)
        return run

    def _seen(self, report: Mapping[str, Any]) -> float:
        """When Prometheus had scraped what the report has, Unix time. Waits until its rules have been evaluated up to
        then. On busy cores both take a while."""
        seconds = f'sum(whyidle_device_seconds_total{{run="{report["run"]}"}})'
        spent = sum(report["seconds"].values())
        until(lambda: self.server.query(f"{seconds} >= {spent}"))
        scraped_at = time.time()
        recorded = f'min(timestamp(run_family:whyidle_share:ratio1m{{run="{report["run"]}"}}))'
        until(lambda: self.server.query(f"{recorded} > {scraped_at}"))
        return scraped_at

    @cached_property
    def places(self) -> list[Place]:
        """The places and times for which a dashboard may be opened: each run at its end, then the simulated node."""
        runs = [self.run(name) for name in OBSERVED]
        hung = HUNG[1]
        fake = (
            {"owner": hung.owner, "run": "llama", "node": NODE},
            {"owner": hung.owner, "run": hung.run, "node": hung.node},
        )
        return [*(run.place for run in runs), *(Place(chosen, runs[-1].at) for chosen in fake)]

    def variables(self, path: Path, place: Place) -> dict[str, Value]:
        """The values of a dashboard's variables. A variable that lists nothing matches nothing."""
        found: dict[str, Value] = {**RANGE, **fixed(path), **place.chosen}
        for one in listed(path):
            samples = self.server.query(filled(one.expression, found), place.at)
            values = one.values((sample.labels, f"{sample.value:g}") for sample in samples)
            assert found.get(one.name, "") in {"", *values}, f"${one.name} lists {values}, not {found[one.name]}"
            found.setdefault(one.name, values if one.several else values[0])
        return found

    def why_empty(self, query: Query, expressions: Mapping[Place, str]) -> str | None:
        """Why a query has no data anywhere: "" if it has some, otherwise a reason, or None if there is none."""
        if any(finite(self.server.query(text, place.at)) for place, text in expressions.items()):
            return ""
        for place, text in expressions.items():
            # Over some time, for the state of a rank at one moment.
            lately = f"last_over_time(({without_thresholds(text)})[{WINDOW_SECONDS}s:1s])"
            if finite(self.server.query(lately, place.at)):
                return "nothing here is beyond its threshold"
        names = sorted({selector.partition("{")[0] for selector in selectors(query.expression)})
        for name in QUIET.keys() & set(names):
            if not self.server.query(f"increase({name}[1h]) > 0", self.places[-1].at):
                return QUIET[name]
        return EMPTY.get(query.where) or next((NO_SERIES[name] for name in names if name in NO_SERIES), None)


def _report(demo: Demo) -> dict[str, Any]:
    """In this process, because Python takes seconds to start while the ranks use the cores."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["report", "--json", "--dir", demo.ledgers()]) == 0
    return json.loads(out.getvalue())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    for name in ("node", "prometheus", "hung"):
        (folder / name).mkdir()
    with contextlib.ExitStack() as stack:
        stack.enter_context(machine())
        fake = stack.enter_context(whole(folder / "node"))
        stack.enter_context(moving(fake))
        stack.enter_context(children(folder / "hung", *HUNG))
        agents = [stack.enter_context(fake.agent(*flags)) for flags in ((), (f"--ledger.dir={folder / 'hung'}",))]
        shipped = rules(folder / "rules", HURRIED)
        server = stack.enter_context(prometheus(folder / "prometheus", *shipped))
        yield World(folder, server, *agents)


@pytest.fixture(params=OBSERVED)
def run(request: pytest.FixtureRequest, world: World) -> Run:
    return world.run(request.param)


def test_promtool_accepts_the_shipped_configuration(tmp_path: Path) -> None:
    """With the generated rules in their place."""
    shutil.copytree(SHIPPED, tmp_path / "shipped")
    shutil.copytree(RULES[0].parent, tmp_path / "shipped" / "rules")
    command = ["promtool", "check", "config", "--lint=all", "--lint-fatal", "prometheus.yml"]
    done = subprocess.run(command, cwd=tmp_path / "shipped", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


# -- each run


def test_the_recorded_verdict_is_the_injected_fault(world: World, run: Run) -> None:
    for window in ("1m", "5m"):
        [verdict] = world.look(f'run_family:whyidle_verdict:ratio{window}{{run="{run.name}"}}', run)
        assert verdict.labels["family"] == run.fault.family, verdict
    # The longer window contains the whole run, like the report.
    assert verdict.value == pytest.approx(run.verdict_share, abs=LOOKED_THROUGH_WITHIN)


def test_the_report_of_the_job_names_the_injected_fault(run: Run) -> None:
    names_what_was_injected(run.outcome, run.fault.family, run.fault.late)


def test_the_recorded_shares_are_those_of_the_report(world: World, run: Run) -> None:
    behind = world.behind(run)
    recorded = world.server.values(f'run_family:whyidle_share:ratio1m{{run="{run.name}"}}', "family", run.scraped)
    assert sum(recorded.values()) == pytest.approx(1.0, abs=1e-6)
    assert {family: recorded.get(family, 0.0) for family in FAMILIES} == pytest.approx(run.families, abs=WITHIN), behind


@pytest.mark.parametrize("name", OBSERVED)
def test_a_comparison_of_the_report_with_prometheus_finds_the_same_seconds(
    world: World, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = world.run(name)
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(run.report))
    times = "..".join(datetime.fromtimestamp(moment).isoformat() for moment in (run.at - WINDOW_SECONDS - 1, run.at))
    words = [str(saved), f"{run.report['owner']}/{run.name}@{times}", "--prometheus", world.server.url]
    assert main(["compare", *words, "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert pair["whole"]["after"] == pytest.approx(pair["whole"]["before"], rel=0.1)
    for family in pair["families"]:
        assert abs(family["difference"]) < 0.08 * pair["whole"]["before"], family


def test_the_recorded_bill_is_that_of_the_report(world: World, run: Run) -> None:
    behind = world.behind(run)
    bill = f'run_family:whyidle_billed_seconds:increase{{run="{run.name}"}}[{WINDOW_SECONDS}s]'

    def shares(at: float) -> dict[str, float]:
        billed = world.server.values(f"sum by (family) (sum_over_time({bill}))", "family", at)
        return {family: seconds / sum(billed.values()) for family, seconds in billed.items()}

    assert shares(run.scraped)["compute"] == pytest.approx(run.families["compute"], abs=WITHIN), behind
    assert shares(run.at)[run.fault.family] == pytest.approx(run.verdict_share, abs=LOOKED_THROUGH_WITHIN)


SHOWN: list[tuple[str, str, str, Callable[[Run], Mapping[str, float]]]] = [
    # dashboard, panel and query, label of the series, the value in the report
    ("whyidle-run", "Goodput A", "", lambda run: {"": run.shares["compute"]}),
    ("whyidle-run", "Where its time goes, by cause A", "cause", lambda run: run.shares),
]


@pytest.mark.parametrize(("dashboard", "where", "label", "truth"), SHOWN, ids=[row[1] for row in SHOWN])
def test_the_numbers_on_the_dashboard_are_those_of_the_report(
    world: World, run: Run, dashboard: str, where: str, label: str, truth: Callable[[Run], Mapping[str, float]]
) -> None:
    behind = world.behind(run)
    path = next(path for path in DASHBOARDS if path.stem == dashboard)
    [query] = [query for query in dashboard_queries(path) if query.where == where]
    chosen = {**world.variables(path, run.place), "window": "1m"}
    shown = world.server.values(filled(query.expression, chosen), label, run.scraped)
    expected = truth(run)
    assert shown.keys() <= expected.keys()
    assert {name: shown.get(name, 0.0) for name in expected} == pytest.approx(expected, abs=WITHIN), behind


def test_only_the_alert_of_the_injected_fault_fires(run: Run) -> None:
    firing = [alert for alert in run.alerts if alert["state"] == "firing"]
    mine = [alert for alert in firing if alert["labels"].get("run") == run.name]
    names = [alert_name(alert["labels"]) for alert in mine]
    assert [name for name in names if name.startswith(FAMILY_ALERT)] == [run.fault.alert], mine
    for alert in firing:
        for text in alert["annotations"].values():
            assert "<error" not in text, alert  # of a template
            assert "<no value>" not in text, alert


def test_a_hang_shows_while_it_lasts(world: World, run: Run) -> None:
    [verdict] = world.look('run_family:whyidle_verdict:ratio1m{run="hung"}', run)
    assert (verdict.labels["family"], verdict.value) == ("host", pytest.approx(1.0, abs=WITHIN))
    hung = [alert["labels"] for alert in run.alerts if alert["labels"].get("run") == "hung"]
    assert [labels["rank"] for labels in hung if labels["alertname"] == "WhyidleCollectiveHung"] == ["1"], hung


# -- every query


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_panel_has_data_or_is_empty_for_a_reason(world: World, path: Path) -> None:
    variables = {place: world.variables(path, place) for place in world.places}
    unexplained = []
    for query in dashboard_queries(path):
        often = looking_often(query.expression, LOOKS)
        if world.why_empty(query, {place: filled(often, chosen) for place, chosen in variables.items()}) is None:
            unexplained.append(str(query))
    assert not unexplained, "\n".join(unexplained)


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_every_rule_has_data_or_is_empty_for_a_reason(world: World, path: Path) -> None:
    unexplained = [
        str(query)
        for _, query in rule_queries(path)
        if world.why_empty(query, dict.fromkeys(world.places, query.expression)) is None
    ]
    assert not unexplained, "\n".join(unexplained)


def test_series_listed_as_missing_are_missing(world: World) -> None:
    at = world.places[-1].at
    there = {name for name in NO_SERIES if world.server.query(f"last_over_time({name}[1h])", at)}
    assert not there
    known = {query.where for path in RULES for _, query in rule_queries(path)}
    known |= {query.where for path in DASHBOARDS for query in dashboard_queries(path)}
    assert EMPTY.keys() <= known


TWICE = re.compile(r"ts=(\S+?)\.\d+Z .* group=(\S+) .* index=(\d+) .*different value but same timestamp")
"""If the wall clock is set back, Prometheus may evaluate a group again for a moment for which it has just done so. Two
rules that record the same series cause the same message, but at each evaluation."""


def _errors(log: str) -> Iterator[str]:
    """The lines of a log that tell of errors in the rules."""
    lines = log.splitlines()
    moments: dict[tuple[str, str], set[str]] = defaultdict(set)
    for line in lines:
        if found := TWICE.search(line):
            moments[found[2], found[3]].add(found[1])
    for line in lines:
        found = TWICE.search(line)
        if not found or len(moments[found[2], found[3]]) > 2:
            yield line


def test_prometheus_logs_no_errors(world: World) -> None:
    assert world.places
    assert [(rule["name"], rule["lastError"]) for rule in world.server.rules() if rule["health"] != "ok"] == []
    # On busy cores a scrape may take longer than the second that it has here.
    assert world.server.query(f'avg_over_time(up{{instance=~"{world.fakes}"}}[5m]) < 0.8', world.places[-1].at) == []
    assert [*_errors(world.server.log())] == []
