"""Alerts in pairs: silent at the evaluation before, firing at the next, with exact labels and annotations.

The cases are in tests/alerts/cases/alerts/, one file per topic. Each has the `series` that Prometheus sees, in
promtool's notation. It has either `fires` (with its texts, and `lasts`: a time at which it still fires), or `never`:
why it must stay silent, with `silent`, the time of the check. `was` names an old fault of the alert that the case keeps
from coming back. `severity` is given if an alert has several. `@` in a series stands for the labels that Prometheus
adds to series of the agent of one node. Samples are a minute apart, or `every` that many seconds: samples exactly on
the edge of a counter's window count in Prometheus 2 and not in Prometheus 3.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from support_promtool import needed, run_tests
from support_sums import with_sums
from support_yaml import read_yaml, write_yaml

from whyidle.agent.metrics import METRIC
from whyidle.alerts import alerting, recording
from whyidle.alerts.config import DEFAULT, Config
from whyidle.alerts.output import to_yaml
from whyidle.alerts.panels import OF_NODE, OF_RUN, panel_id
from whyidle.alerts.recording import ranks
from whyidle.alerts.rule import Alert, Group, Record

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests/alerts/cases/alerts").glob("*.yaml"))
TARGET = 'job="whyidle", instance="10.0.0.17:9838"'
PAGE = (ROOT / "docs/runbook.md").read_text()
RULES: dict[tuple[str, str], Alert] = {(alert.name, alert.severity): alert for alert in alerting.alerts(DEFAULT)}
"""An alert may be critical on a node that runs ranks, and a warning on others."""
ALERTS: dict[str, Alert] = {name: alert for (name, _), alert in RULES.items()}
SERIES_NAME = re.compile(r"\b(whyidle_\w+|[a-z_]+:whyidle_\w+:\w+)")

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def load(path: Path) -> list[dict[str, Any]]:
    return read_yaml(path.read_text())


def minutes(text: str) -> int:
    """`90m` or `2h` in minutes."""
    return int(text[:-1]) * {"m": 1, "h": 60}[text[-1]]


def dashboard_url(alert: str, labels: dict[str, str]) -> str:
    """The panel for the alert on the dashboard of its run, otherwise of its node, otherwise of everything, in its
    cluster."""
    cluster = f"&var-cluster={quote_plus(labels['cluster'])}" if "cluster" in labels else ""
    if "run" in labels:
        of = f"run?var-owner={quote_plus(labels.get('owner', ''))}&var-run={quote_plus(labels['run'])}"
        panel = OF_RUN.get(alert, "")
    elif "node" in labels:
        page, panel = OF_NODE.get(alert, ("node", ""))
        of = f"{page}?var-node={quote_plus(labels['node'])}"
    else:
        of, panel = "overview?", ""
    return f"/d/whyidle-{of}{f'&viewPanel={panel_id(panel)}' if panel else ''}{cluster}"


def severity(case: dict[str, Any]) -> str:
    [found] = [of for name, of in RULES if name == case["alert"] and of == case.get("severity", of)]
    return found


def expected(case: dict[str, Any]) -> dict[str, Any]:
    alert = ALERTS[case["alert"]]
    return {
        "exp_labels": {"severity": severity(case), **case.get("labels", {})},
        "exp_annotations": {
            "summary": case["summary"],
            "description": case["description"],
            "runbook_url": f"{DEFAULT.runbook_url}#{alert.name.lower()}",
            "dashboard_url": dashboard_url(alert.name, case.get("labels", {})),
        },
    }


def group(case: dict[str, Any]) -> dict[str, Any]:
    """One test for promtool."""
    times: list[tuple[int, list[dict[str, Any]]]] = [(minutes(time), []) for time in case.get("silent", ())]
    if "fires" in case:
        at = minutes(case["fires"])
        before = [(at - 1, [])] if at else []
        times += [*before, *((time, [expected(case)]) for time in (at, *map(minutes, case.get("lasts", ()))))]
    return {
        "name": f"{case['alert']}: {case.get('was') or case.get('never', 'fires')}",
        "interval": f"{case.get('every', 60)}s",
        "input_series": [
            {"series": name, "values": values}
            for name, values in with_sums((name.replace("@", TARGET), text) for name, text in case["series"].items())
        ],
        "alert_rule_test": [
            {"eval_time": f"{time}m", "alertname": case["alert"], "exp_alerts": alerts} for time, alerts in times
        ],
    }


def alone(name: str, groups: tuple[Group, ...]) -> list[Group]:
    """The alert without the other alerts of its group, which promtool would also evaluate for each minute of a day."""
    return [
        replace(
            group_,
            interval=None,
            rules=tuple(rule for rule in group_.rules if isinstance(rule, Record) or rule.name == name),
        )
        for group_ in groups
    ]


def shared(config: Config) -> Group:
    """The recording rules that alerts of several topics use."""
    return Group("shared", None, (ranks.target_node(config), ranks.open_phases(config)))


def recorded() -> set[str]:
    groups = (*recording.groups(DEFAULT), *alerting.groups(DEFAULT))
    return {rule.name for group_ in groups for rule in group_.rules if isinstance(rule, Record)}


@needs_promtool
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_fires_when_expected_and_not_before(path: Path, tmp_path: Path) -> None:
    assert_promtool(path.stem, load(path), DEFAULT, tmp_path)


@needs_promtool
def test_stops_alerting_about_a_cable_that_was_pulled_long_ago(tmp_path: Path) -> None:
    """It stops when whyidle no longer remembers that there was a cable."""
    case = {
        "alert": "WhyidleRdmaLinkDown",
        "severity": "warning",
        "series": {
            'whyidle_node_info{@, node="gpu-17"}': "1x200",
            'whyidle_rdma_port_up{@, device="mlx5_0", port="1"}': "1x20 0x180",
        },
        "fires": "36m",
        "lasts": ["138m"],
        "silent": ["142m", "200m"],
        "labels": {
            "job": "whyidle", "instance": "10.0.0.17:9838", "node": "gpu-17", "device": "mlx5_0", "port": "1",
        },
        "summary": "gpu-17: port 1 of mlx5_0 is down.",
        "description": "On the node at 10.0.0.17:9838 port 1 of mlx5_0 was up before and cannot carry data now. Jobs "
        "that use it stall, or fail after their last retry. Check the cable and the other end.",
    }  # fmt: skip
    config = replace(DEFAULT, alerts=replace(DEFAULT.alerts, remember_seconds=7200.0))
    assert_promtool("network", [case], config, tmp_path)


@needs_promtool
def test_shows_money_if_a_price_is_set(tmp_path: Path) -> None:
    case = {
        "alert": "WhyidleLostTo",
        "series": {
            'run_family:whyidle_charged:ratio5m{owner="nlp", run="llama", family="cpu"}': "0.25x30",
            'run:whyidle_device_seconds:rate5m{owner="nlp", run="llama"}': "16x30",
        },
        "fires": "15m",
        "labels": {"owner": "nlp", "run": "llama", "family": "cpu"},
        "summary": "Run nlp/llama loses 25% of its time to cpu.",
        "description": "In the last 5m, or the last 1h if it comes in bursts, 25% of the time of all ranks of run "
        "nlp/llama went to CPUs: its ranks, or ranks that they wait for, wait for batches from workers that compute "
        "or get no CPU. That is 4.0 idle GPUs, or €10.00 an hour. Waits for a late rank count under what made that "
        "rank late.",
    }
    assert_promtool("idle", [case], replace(DEFAULT, gpu_hour_price=2.5, currency="€"), tmp_path)


def assert_promtool(topic_name: str, cases: list[dict[str, Any]], config: Config, directory: Path) -> None:
    """Lets promtool run the cases of a topic, each alert with the rules that it uses."""
    topic = next(topic for topic in alerting.TOPICS if topic.__name__.endswith(f".{topic_name}"))
    names = sorted({case["alert"] for case in cases})
    for name in names:
        groups = needed([shared(config), *alone(name, topic.groups(config))], [])
        (directory / f"{name}-rules.yaml").write_text(to_yaml(groups))
        test = {
            "rule_files": [f"{name}-rules.yaml"],
            "evaluation_interval": "1m",
            "group_eval_order": [group_.name for group_ in groups],  # otherwise any order
            "tests": [group(case) for case in cases if case["alert"] == name],
        }
        (directory / f"{name}.yaml").write_text(write_yaml(test, sort_keys=False, allow_unicode=True))
    done = run_tests([f"{name}.yaml" for name in names], directory)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_that_fires() -> None:
    fired = {(case["alert"], severity(case)) for path in CASES for case in load(path) if "fires" in case}
    assert fired == set(RULES)


def test_no_two_rules_have_the_same_name_and_severity() -> None:
    assert len(RULES) == len(alerting.alerts(DEFAULT))


@needs_promtool
@pytest.mark.parametrize("config", [DEFAULT, Config(selector='team="a"', cluster_label="site")], ids=["default", "own"])
def test_promtool_accepts_the_rules(config: Config, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(to_yaml(alerting.groups(config)))
    done = subprocess.run(["promtool", "check", "rules", "rules.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_named_series_exist() -> None:
    named = {
        name
        for group_ in alerting.groups(DEFAULT)
        for rule in group_.rules
        for text in ((rule.expr, rule.description) if isinstance(rule, Alert) else (rule.expr,))
        for name in SERIES_NAME.findall(text)
    }
    assert named
    assert named - METRIC.keys() - recorded() == set()


def test_the_selector_reaches_every_series() -> None:
    for alert in alerting.alerts(Config(selector='team="a"')):
        for name, matchers in re.findall(r"(?<![:\w])(whyidle_\w+)(\{[^}]*\})?", alert.expr):
            assert 'team="a"' in matchers, f"{alert.name}: {name}"


@pytest.mark.parametrize("alert", ALERTS.values(), ids=ALERTS)
def test_has_a_section_in_the_runbook(alert: Alert) -> None:
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
    assert alert.name in sections
    for part in ("**Means**", "**Look**", "**Do**"):
        assert part in sections[alert.name]


def test_the_table_of_the_runbook_has_every_alert_with_its_severities() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(#(\w+)\) \| ([\w, ]+) \| (\w+) \| (.+) \|$", PAGE, re.MULTILINE)
    said = {(name, of) for name, _, several, _, _ in rows for of in several.split(", ")}
    assert said == set(RULES)
    assert [name for name, anchor, *_ in rows if anchor != name.lower()] == []
    assert {who for _, _, _, who, _ in rows} == {"run", "cluster", "hardware", "whyidle"}


def test_the_runbook_names_only_alerts_and_series_that_exist() -> None:
    assert set(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)) == set(ALERTS)
    assert set(SERIES_NAME.findall(PAGE)) - METRIC.keys() - recorded() == set()


def test_the_runbook_names_panels_that_exist() -> None:
    panels = set()
    for path in (ROOT / "dashboards/generated").glob("*.json"):
        dashboard = json.loads(path.read_text())
        name = dashboard["uid"].removeprefix("whyidle-").replace("-", " ").capitalize()
        for panel in dashboard["panels"]:
            panels |= {(name, one.get("title")) for one in (panel, *panel.get("panels", ()))}
    page = " ".join(PAGE.split())
    named = set(re.findall(r"\*([\w ]+) › ([^*]+)\*", page)) - {("Dashboard", "Panel")}
    assert named
    assert named - panels == set()


def test_links_of_alerts_lead_to_panels_that_exist() -> None:
    leads = {alert: ("run", title) for alert, title in OF_RUN.items()} | OF_NODE
    missing = set()
    for alert, (page, title) in leads.items():
        dashboard = json.loads((ROOT / f"dashboards/generated/whyidle-{page}.json").read_text())
        there = {one["id"] for panel in dashboard["panels"] for one in (panel, *panel.get("panels", ()))}
        missing |= set() if panel_id(title) in there else {f"{alert}: {page} › {title}"}
    assert missing == set()
    nowhere = {"WhyidleAgentDown", "WhyidleAgentAbsent", "WhyidleWatchdog", "WhyidleLedgerErrors", "WhyidleOomKill"}
    assert set(ALERTS) - leads.keys() == nowhere
