"""The settings of rules and alerts: what a file changes, which files are rejected, and that the chart does the same."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from helm_python import HelmError
from support_helm import manifests, texts
from support_yaml import read_yaml, write_yaml

from whyidle.alerts import alerting, chart, settings
from whyidle.alerts.config import DEFAULT, Config
from whyidle.alerts.output import files
from whyidle.alerts.thresholds import Thresholds
from whyidle.alerts.tokens import FIXED
from whyidle.cli.main import main

NAMES = frozenset(alert.name for alert in alerting.alerts(DEFAULT))
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")

CHANGED: dict[str, Any] = {
    "selector": r'team="a", job=~"agents|own\\d*"',
    "cluster_label": "site",
    "runbook_url": "https://wiki.example.org/runbook",
    "dashboard_url": "https://grafana.example.org/grafana",
    "gpu_hour_price": 2.5,
    "currency": "€",
    "labels": {"team": "ml"},
    "for_slow": "20m",
    "tcp_retransmit_share": 0.05,
    "alerts": {"storage_share": 0.25, "hang_seconds": 600, "startup_for": "1h", "agent_job": "agents|own"},
    "overrides": {
        "WhyidleGoodputLow": {"enabled": False},
        "WhyidleGpuGone": {"severity": "info", "for": "0s", "labels": {"team": "hardware"}},
    },
}

WRONG: list[tuple[Any, str]] = [
    ({"alerts": {"storge_share": 0.1}}, "alerts.storge_share is not a setting. Did you mean storage_share?"),
    ({"slector": ""}, "slector is not a setting. Did you mean selector?"),
    ({"xyzzy": 1}, "xyzzy is not a setting. `whyidle rules --print-config` prints all settings."),
    ({"alerts": {"storage_share": "much"}}, "alerts.storage_share must be a number, not 'much'"),
    ({"alerts": {"storage_share": True}}, "alerts.storage_share must be a number, not True"),
    ({"alerts": {"storage_share": 25}}, "alerts.storage_share must be 0 to 1, not 25"),
    ({"alerts": {"hang_seconds": -1}}, "alerts.hang_seconds must be at least 0, not -1"),
    ({"alerts": {"hang_seconds": float("nan")}}, "alerts.hang_seconds must be at least 0, not nan"),
    ({"for_slow": "5 minutes"}, "for_slow must be a Prometheus duration of one unit, such as 30s, 5m or 1h"),
    ({"for_slow": 15}, "for_slow must be a string, not 15"),
    ({"alerts": {"past": "1h"}}, "alerts.past must be a list with at least one item, not '1h'"),
    ({"alerts": {"past": ["soon"]}}, "alerts.past[0] must be a Prometheus duration"),
    ({"window": "7m"}, "window and long_window must be among windows"),
    ({"window": "1h", "long_window": "5m"}, "long_window is 5m, and must not be shorter than window, 1h"),
    ({"windows": []}, "windows must be a list with at least one item, not []"),
    ({"selector": "job=whyidle"}, 'selector must be matchers such as job="whyidle", or empty'),
    ({"runbook_url": "runbook.md"}, "runbook_url must be a URL that begins with https://"),
    ({"overrides": {"WhyidleGpuLst": {}}}, "overrides.WhyidleGpuLst is not an alert. Did you mean WhyidleGpuLost?"),
    ({"overrides": {"WhyidleGpuLost": {"severity": "page"}}}, "severity must be critical, warning or info, not 'page'"),
    ({"overrides": {"WhyidleGpuLost": {"enabled": "no"}}}, "enabled must be true or false, not 'no'"),
    ({"labels": {"severity": "page"}}, "labels.severity cannot be set: write overrides.<alert>.severity"),
    ({"labels": {"a b": "x"}}, "the label 'a b' in labels must be the name of a label"),
    ({"labels": {"run": "x"}}, "labels.run cannot be set: alerts have a label run that says what they concern"),
    ({"cluster_label": "node"}, "cluster_label cannot be node: series have a label of this name"),
    ({"selector": 'job=~"(whyidle"'}, "selector has an invalid regular expression, '(whyidle'"),
    ({"selector": 'job=~"(?!other).*"'}, "selector has a lookaround, which Prometheus does not know"),
    ({"selector": r'node=~"gpu-\d+"'}, "or empty, with \\\\ for a backslash, not"),
    ({"alerts": {"agent_job": "("}}, "alerts.agent_job has an invalid regular expression, '('"),
    ({"alerts": {"shared_fstypes": "*"}}, "alerts.shared_fstypes has an invalid regular expression, '*'"),
    ({"for_slow": "99999999999w"}, "for_slow must be a Prometheus duration of one unit"),
    ({"labels": {"team": 3}}, "labels.team must be a string, not 3"),
    ({"alerts": 3}, "alerts must be a mapping of settings, not 3"),
    ([], "the file must be a mapping of settings, not []"),
]


def write(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(document if isinstance(document, str) else write_yaml(document), encoding="utf-8")
    return path


def generated(tmp_path: Path, document: Any) -> dict[str, list[dict[str, Any]]]:
    """What the command writes with these settings: file -> groups."""
    assert main(["rules", "--config", str(write(tmp_path, document)), "--out", str(tmp_path / "out")]) == 0
    return {path.name: read_yaml(path.read_text())["groups"] for path in sorted((tmp_path / "out").iterdir())}


def alerts_of(groups: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def test_the_printed_settings_are_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert settings.parse(read_yaml(printed), NAMES) == DEFAULT


def test_the_printed_settings_are_those_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--config", str(write(tmp_path, CHANGED)), "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert settings.parse(read_yaml(printed), NAMES) == settings.parse(CHANGED, NAMES)


@pytest.mark.parametrize("of", [Config, Thresholds])
def test_every_setting_has_a_description(of: type) -> None:
    silent = {name for name, setting in settings.settings(of).items() if not setting.says}
    assert silent - {"alerts"} == set()


@pytest.mark.parametrize(("document", "said"), WRONG, ids=[said[:40] for _, said in WRONG])
def test_rejects_invalid_settings_and_says_what_to_do(document: Any, said: str) -> None:
    with pytest.raises(settings.SettingsError) as caught:
        settings.parse(document, NAMES)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"), [("a: [", "is not YAML"), ("storage_share: 1", "settings.yaml: storage_share is not a setting")]
)
def test_a_bad_file_ends_the_command(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--config", str(write(tmp_path, text))]) == 2
    assert said in capsys.readouterr().err


def test_a_missing_file_ends_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--config", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml cannot be read: No such file or directory" in capsys.readouterr().err


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    expected = {name: read_yaml(text)["groups"] for name, text in files(DEFAULT).items()}
    assert generated(tmp_path, "") == expected


def test_a_file_reaches_the_rules(tmp_path: Path) -> None:
    made = generated(tmp_path, CHANGED)
    alerts = alerts_of(made["alerts.yaml"])
    assert "WhyidleGoodputLow" not in alerts
    gone, hung = alerts["WhyidleGpuGone"], alerts["WhyidleCollectiveHung"]
    assert gone["labels"] == {"team": "hardware", "severity": "info"}
    assert "for" not in gone
    assert hung["labels"] == {"team": "ml", "severity": "critical"}
    assert "> 600" in hung["expr"]
    assert hung["annotations"]["runbook_url"] == "https://wiki.example.org/runbook#whyidlecollectivehung"
    assert hung["annotations"]["dashboard_url"].startswith("https://grafana.example.org/grafana/d/whyidle-")
    assert alerts["WhyidleStartupSlow"]["for"] == "1h"
    for rule in (rule for groups in made.values() for group in groups for rule in group["rules"]):
        assert "cluster," not in rule["expr"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_rules_made_with_a_file(tmp_path: Path) -> None:
    generated(tmp_path, CHANGED)
    paths = sorted((tmp_path / "out").iterdir())
    done = subprocess.run(["promtool", "check", "rules", *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# -- the chart


def other(name: str, setting: settings.Setting) -> Any:
    """Another value that the setting may have."""
    if name in CHANGED:
        return CHANGED[name]
    if isinstance(setting.default, float):
        return setting.default / 2 if setting.default > 2 else 0.625 if setting.default < 1.5 else 3.5
    return "a|b" if name in ("alerts.agent_job", "alerts.shared_fstypes") else "3m"


def all_changed() -> dict[str, Any]:
    """Settings in which every setting of the chart has another value."""
    found: dict[str, Any] = {"alerts": {}, "overrides": CHANGED["overrides"], "labels": CHANGED["labels"]}
    for name in chart.document()["settings"]:
        section, _, key = name.rpartition(".")
        of = settings.settings(Thresholds if section else Config)[key]
        (found[section] if section else found)[key] = other(name, of)
    return found


def plain(value: Any) -> Any:
    """With numbers in expressions and texts in one notation: Helm and Python write 1000000 differently."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return NUMBER.sub(lambda found: repr(float(found[0])), value) if isinstance(value, str) else value


@pytest.mark.parametrize(
    "config", [{"for_slow": DEFAULT.for_slow}, CHANGED, all_changed()], ids=["defaults", "some", "all"]
)
@pytest.mark.parametrize("form", ["operator", "prometheus"])
def test_the_chart_and_the_command_make_the_same_rules(config: dict[str, Any], form: str) -> None:
    expected = [read_yaml(text)["groups"] for text in files(settings.parse(config, NAMES)).values()]
    made = manifests({"rules": {"enabled": True, "format": form, "config": config}})
    if form == "operator":
        found = [each["spec"]["groups"] for each in made if each["kind"] == "PrometheusRule"]
    else:
        [config_map] = [each for each in made if each["kind"] == "ConfigMap"]
        found = [read_yaml(text)["groups"] for text in config_map["data"].values()]
    assert plain(found) == plain(expected)


def test_changed_settings_cover_every_setting() -> None:
    """Otherwise the test above could not find a setting that the chart does not use."""
    changed = settings.parse(all_changed(), NAMES)
    for of, values in ((DEFAULT, changed), (DEFAULT.alerts, changed.alerts)):
        same = {name for name in vars(of) if getattr(of, name) == getattr(values, name)}
        assert same - FIXED == {"past"} if of is DEFAULT.alerts else same - FIXED == set()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"alerts": {"storge_share": 0.1}}, "rules.config.alerts.storge_share is not a setting: `whyidle rules"),
        ({"alerts": {"storage_share": 25}}, "rules.config.alerts.storage_share is 25: write a number from 0 to 1"),
        ({"alerts": {"hang_seconds": -1}}, "rules.config.alerts.hang_seconds is -1: write a number from 0 on"),
        ({"alerts": {"hang_seconds": "long"}}, "rules.config.alerts.hang_seconds is long: write a number"),
        ({"for_slow": "5 minutes"}, "rules.config.for_slow is 5 minutes: write a Prometheus duration of one unit"),
        ({"for_slow": "99999999999w"}, "rules.config.for_slow is 99999999999w: write a Prometheus duration of"),
        ({"selector": 'job=~"(whyidle"'}, "rules.config.selector has an invalid regular expression: (whyidle"),
        ({"selector": r'job=~"a\d"'}, "rules.config.selector is job=~"),
        ({"alerts": {"agent_job": "("}}, "rules.config.alerts.agent_job has an invalid regular expression: ("),
        ({"cluster_label": "node"}, "rules.config.cluster_label cannot be node: series have a label of this name"),
        ({"labels": {"run": "x"}}, "rules.config.labels.run cannot be set: alerts have a label run that says"),
        (
            {"overrides": {"WhyidleGpuLost": {"labels": {"gpu": "x"}}}},
            "rules.config.overrides.WhyidleGpuLost.labels.gpu cannot be set",
        ),
        ({"windows": ["5m"]}, "rules.config.windows cannot be changed in the chart"),
        ({"overrides": {"WhyidleNone": {}}}, "rules.config.overrides.WhyidleNone is not an alert"),
        ({"overrides": {"WhyidleGpuLost": {"severity": "page"}}}, "value must be one of 'critical', 'warning', 'info'"),
    ],
)
def test_the_chart_rejects_invalid_settings_and_says_what_to_do(config: dict[str, Any], said: str) -> None:
    with pytest.raises(HelmError) as caught:
        texts({"rules": {"enabled": True, "config": config}})
    assert said in str(caught.value)


def test_every_setting_reaches_the_chart_as_a_token() -> None:
    """In the chart, numbers become tokens. The sum of a token and a number would be a number again."""
    tokens = set(re.findall(r"⟦([^⟧]+)⟧", chart.files()[chart.FILE]))
    assert tokens >= chart.document()["settings"].keys() - {"gpu_hour_price", "currency", "dashboard_prefix"}
