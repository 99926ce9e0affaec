"""Alertmanager's configuration in a real Alertmanager: which receiver gets which alert, and which alerts silence which.

The labels are those of the alerts in tests/alerts/cases/alerts. Every pair of alerts that an inhibition rule names is
sent, each pair in a separate cluster so that other rules have no effect on it.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import psutil
import pytest
from support_ledgers import DEADLINE_SECONDS, until
from support_yaml import read_yaml

from whyidle.alerts import alerting
from whyidle.alerts.config import DEFAULT

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "prometheus" / "alertmanager.yml"
CONFIG: dict[str, Any] = read_yaml(FILE.read_text())
ALERTMANAGER = shutil.which("prometheus-alertmanager")
SEVERITIES: dict[str, set[str]] = {}
for alert in alerting.alerts(DEFAULT):
    SEVERITIES.setdefault(alert.name, set()).add(alert.severity)
Labels = dict[str, str]
_no_proxy = build_opener(ProxyHandler({}))

pytestmark = pytest.mark.skipif(
    not (ALERTMANAGER and shutil.which("amtool")),
    reason="needs prometheus-alertmanager, of the Debian package of that name",
)


def _labels() -> dict[str, Labels]:
    found: dict[str, Labels] = {}
    for file in sorted((ROOT / "tests/alerts/cases/alerts").glob("*.yaml")):
        for case in read_yaml(file.read_text()):
            if "fires" in case:
                of = case.get("severity", min(SEVERITIES[case["alert"]]))  # critical comes first
                found.setdefault(case["alert"], {**case.get("labels", {}), "severity": of})
    assert found.keys() == SEVERITIES.keys()
    # Set by `external_labels` or by targets, and differently in each pair.
    return {
        name: {**{k: v for k, v in labels.items() if k != "cluster"}, "alertname": name}
        for name, labels in found.items()
    }


LABELS = _labels()
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


def matching(matchers: list[str]) -> set[str]:
    """The alerts that match. As in Alertmanager, expressions are anchored."""
    found = set(LABELS)
    for matcher in matchers:
        parts = MATCHER.fullmatch(matcher)
        assert parts, matcher
        label, how, value = parts.groups()
        pattern = re.compile(value if "~" in how else re.escape(value))
        found = {n for n in found if bool(pattern.fullmatch(LABELS[n].get(label, ""))) == (how in ("=", "=~"))}
    return found


@dataclass(frozen=True)
class Pair:
    """Two alerts, and whether the first silences the second."""

    source: Labels
    target: Labels
    silenced: bool
    why: str


def pairs() -> Iterator[Pair]:
    number = 0
    for rule in CONFIG["inhibit_rules"]:
        equal = [label for label in rule["equal"] if label != "cluster"]
        for source in sorted(matching(rule["source_matchers"])):
            for target in sorted(matching(rule["target_matchers"]) - {source}):
                number += 1
                cluster = {"cluster": f"pair-{number}"}
                cause, effect = LABELS[source] | cluster, LABELS[target] | cluster
                shared = {label: cause[label] for label in equal if label in cause}
                why = f"{source} -> {target}"
                # An alert without an instance does not belong to one node.
                yield Pair(
                    cause,
                    effect | {k: v for k, v in shared.items() if k in effect},
                    shared.keys() <= effect.keys(),
                    why,
                )
                for label in shared.keys() & effect.keys():
                    other = effect | shared | {label: "another", "cluster": f"pair-{number}-{label}"}
                    yield Pair(cause | {"cluster": other["cluster"]}, other, False, f"{why}, another {label}")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("alertmanager")
    command = [str(ALERTMANAGER), f"--config.file={FILE}", f"--storage.path={folder}"]
    command += ["--web.listen-address=127.0.0.1:0", "--cluster.listen-address="]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        found = f"http://127.0.0.1:{until(lambda: _port(process, folder / 'log'))}"
        until(lambda: _ready(found))
        yield found
    finally:
        process.terminate()
        process.wait(DEADLINE_SECONDS)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    assert process.poll() is None, log.read_text()
    known = psutil.Process(process.pid)
    ask = getattr(known, "net_connections", None) or known.connections  # psutil before 6.0
    return next((one.laddr.port for one in ask("tcp") if one.status == psutil.CONN_LISTEN), 0)


def _ready(address: str) -> bool:
    with contextlib.suppress(OSError), _no_proxy.open(f"{address}/-/ready", timeout=DEADLINE_SECONDS) as answer:
        return answer.status == 200
    return False


def _ask(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"Content-Type": "application/json"})
    with _no_proxy.open(request, timeout=DEADLINE_SECONDS) as answer:
        return json.loads(answer.read() or b"null")


def test_every_alert_in_a_rule_exists() -> None:
    for rule in CONFIG["inhibit_rules"]:
        for side in ("source_matchers", "target_matchers"):
            assert matching(rule[side]), rule
            for matcher in rule[side]:
                for name in re.findall(r"Whyidle\w+(?!\.)\b", matcher):
                    assert name in SEVERITIES or f"{name}." in matcher, name


def test_rules_compare_only_labels_that_their_alerts_have() -> None:
    """A label that neither alert has is equal, so such a rule would silence more than it says."""
    for rule in CONFIG["inhibit_rules"]:
        for label in set(rule["equal"]) - {"cluster"}:
            without = {name for name in matching(rule["source_matchers"]) if label not in LABELS[name]}
            assert not without, (rule, label)


def test_inhibits_only_alerts_that_follow_from_another(address: str) -> None:
    said = list(pairs())
    assert {pair.silenced for pair in said} == {True, False}
    ends = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
    alerts = [{"labels": labels, "endsAt": ends} for pair in said for labels in (pair.source, pair.target)]
    _ask(f"{address}/api/v2/alerts", alerts)
    expected = {_key(pair.target): (pair.silenced, pair.why) for pair in said}

    def wrong() -> list[str]:
        there = {_key(alert["labels"]): alert["status"] for alert in _ask(f"{address}/api/v2/alerts")}
        assert there.keys() >= expected.keys()
        return [why for key, (silenced, why) in expected.items() if bool(there[key]["inhibitedBy"]) != silenced]

    until(lambda: not wrong())


def _key(labels: Mapping[str, str]) -> str:
    return json.dumps(dict(labels), sort_keys=True)


@pytest.mark.parametrize(
    ("severity", "receiver"), [("critical", "people"), ("warning", "people"), ("info", "page-only")]
)
def test_routes_alerts_to_their_receivers(severity: str, receiver: str) -> None:
    command = ["amtool", "config", "routes", "test", f"--config.file={FILE}", "alertname=WhyidleAny"]
    done = subprocess.run([*command, f"severity={severity}"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [receiver]


def test_shipped_receivers_send_nothing() -> None:
    """A receiver that sends nothing would count as delivered."""
    assert [list(receiver) for receiver in CONFIG["receivers"]] == [["name"], ["name"]]
    done = subprocess.run(["amtool", "check-config", FILE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_commented_out_settings_are_valid(tmp_path: Path) -> None:
    lines = FILE.read_text().splitlines()
    start = lines.index("  - name: people") + 1
    end = lines.index("  - name: page-only")
    filled = [*lines[:start], *(line.replace("# ", "", 1) for line in lines[start:end]), *lines[end:]]
    (tmp_path / "alertmanager.yml").write_text("\n".join(filled))
    command = ["amtool", "check-config", tmp_path / "alertmanager.yml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    people = read_yaml("\n".join(filled))["receivers"][0]
    assert people.keys() == {"name", "slack_configs", "email_configs", "webhook_configs"}
