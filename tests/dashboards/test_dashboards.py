"""The dashboards: the committed files are the generated ones, every query is valid, and names only what exists."""

from __future__ import annotations

import copy
import importlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support_helm import manifests
from support_ledgers import until
from support_prometheus import prometheus
from support_queries import filled, listing
from support_yaml import read_yaml, read_yamls, write_yaml

from whyidle.agent.metrics import METRIC
from whyidle.agent.metrics.gpu import UNHOOKED_FAMILY
from whyidle.alerts.config import DEFAULT, HISTOGRAM_SUFFIXES
from whyidle.alerts.output import groups
from whyidle.alerts.panels import panel_id
from whyidle.alerts.rule import Record
from whyidle.alerts.tokens import filled as in_words
from whyidle.cli.main import main
from whyidle.dashboards import output
from whyidle.dashboards import variables as v
from whyidle.dashboards.colours import CAUSE_SHADES, FAMILY_COLOUR
from whyidle.dashboards.queries import in_order
from whyidle.ledger.causes import CAUSE_FAMILY, FAMILIES
from whyidle.ledger.text import as_stored

GENERATED = Path(__file__).parents[2] / "dashboards" / "generated"
PROMTOOL = shutil.which("promtool")
DASHBOARDS = output.rendered()
Json = dict[str, Any]

TIMES = {"__rate_interval": "1m", "__interval": "15s", "__interval_ms": "15000", "__range": "1h", "__range_s": "3600"}
"""The values that Grafana substitutes for its own variables."""
REGEX = ".*"
"""Replaces a variable that lists labels."""

OWN_NAME = re.compile(r"\b(?:[a-z_]+:)?whyidle_[a-z0-9_]+(?::[a-z0-9_]+)?\b")


def drawn(dashboard: Json) -> Iterator[Json]:
    """The panels with queries."""
    return (panel for panel in output.panels_of(dashboard) if panel.get("targets"))


def expressions(dashboard: Json) -> Iterator[tuple[str, str]]:
    """Place -> expression as Prometheus gets it, for panels, variables and annotations."""
    chosen = {one["name"]: one["current"].get("value") for one in dashboard["templating"]["list"]}
    values = TIMES | {name: value if isinstance(value, str) else REGEX for name, value in chosen.items()}
    values["exact"] = TIMES["__range_s"]

    def asked(expr: str) -> str:
        return filled(expr, values)

    for panel in drawn(dashboard):
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", asked(target["expr"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", asked(listing(variable).expression)
    for annotation in dashboard["annotations"]["list"]:
        yield f"annotation {annotation['name']}", asked(annotation["expr"])


@pytest.fixture(params=DASHBOARDS, scope="module")
def dashboard(request: pytest.FixtureRequest) -> Json:
    return DASHBOARDS[request.param]


# -- which dashboards exist


def test_uids_are_those_that_links_lead_to() -> None:
    assert set(DASHBOARDS) >= {"whyidle-overview", "whyidle-run"}
    led_to = set(re.findall(r"/d/([a-z-]+)", json.dumps(DASHBOARDS)))
    assert led_to <= DASHBOARDS.keys()
    assert {dashboard["title"] for dashboard in DASHBOARDS.values()} == {
        f"whyidle / {uid.removeprefix('whyidle-').replace('-', ' ').capitalize()}" for uid in DASHBOARDS
    }


def test_command_lists_the_dashboards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboards"]) == 0
    listed = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert listed == {uid: dashboard["description"] for uid, dashboard in DASHBOARDS.items()}


def test_committed_files_are_up_to_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboards", "--check"]) == 0, capsys.readouterr().err
    assert main(["dashboards", "--out", str(tmp_path)]) == 0
    assert main(["dashboards", "--out", str(tmp_path), "--check"]) == 0
    one = next(tmp_path.iterdir())
    one.write_text(one.read_text().replace("GPU", "CPU", 1))
    assert main(["dashboards", "--out", str(tmp_path), "--check"]) == 1
    assert one.name in capsys.readouterr().err


def test_panels_keep_their_numbers(dashboard: Json) -> None:
    """Links from alerts and chats name a panel by its number, and panels come and go."""
    for panel in output.panels_of(dashboard):
        assert panel["id"] == panel_id(f"{'row ' * (panel['type'] == 'row')}{panel['title']}"), panel["title"]


SETTINGS = {
    "selector": 'job="whyidle"',
    "cluster_label": "site",
    "gpu_hour_price": 2.5,
    "currency": "€",
    "dashboard_prefix": "GPUs / ",
    "runbook_url": "https://wiki.example.org/runbook",
}


def test_settings_reach_the_dashboards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "settings.yaml").write_text(write_yaml(SETTINGS))
    command = ["dashboards", "--config", str(tmp_path / "settings.yaml")]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    made = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "out").iterdir()}
    assert {one["title"] for one in made.values()} == {
        f"GPUs / {uid[8:].replace('-', ' ').capitalize()}" for uid in DASHBOARDS
    }
    assert "currency:€" in json.dumps(made["whyidle-overview"], ensure_ascii=False)
    for dashboard in made.values():
        asked = [expr for _, expr in expressions(dashboard)]
        assert not [expr for expr in asked if re.search(r"\bcluster\b(?![:_])", expr)]
        for name, matchers in (
            found for expr in asked for found in re.findall(r"(?<!:)\b(whyidle_\w+)(\{[^}]*)", expr)
        ):
            assert matchers.startswith('{job="whyidle"'), name
    assert main([*command, "--print-config"]) == 0
    assert read_yaml(capsys.readouterr().out.split("\n", 1)[1])["currency"] == "€"
    made_by_chart = manifests({"dashboards": {"enabled": True}, "rules": {"config": SETTINGS}})
    by_chart = {name: text for each in made_by_chart if "data" in each for name, text in each["data"].items()}
    assert {name: json.loads(text) for name, text in by_chart.items() if name.startswith("whyidle-")} == {
        f"{uid}.json": one for uid, one in made.items()
    }


def test_rejects_windows_that_the_dashboards_do_not_query(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "settings.yaml").write_text("window: 1m")
    assert main(["dashboards", "--config", str(tmp_path / "settings.yaml")]) == 2
    assert "Leave these settings as they are" in capsys.readouterr().err


def test_config_maps_hold_the_dashboards_and_fit_into_etcd(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboards", "--configmaps"]) == 0
    maps = list(read_yamls(capsys.readouterr().out))
    assert {one["metadata"]["name"] for one in maps} == set(DASHBOARDS)
    for one in maps:
        [(name, text)] = one["data"].items()
        assert json.loads(text) == DASHBOARDS[name.removesuffix(".json")]
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        # kubectl apply keeps a copy of the whole object in an annotation, and the size of annotations is limited.
        assert len(json.dumps(one)) < 256 * 1024, f"{name}: kubectl apply takes 256 KiB"


def test_dashboards_have_variables_links_and_tag(dashboard: Json) -> None:
    names = [variable["name"] for variable in dashboard["templating"]["list"]]
    assert names[:2] == ["datasource", "cluster"]
    assert dashboard["tags"] == ["whyidle"]
    [link] = dashboard["links"]
    assert (link["keepTime"], link["includeVars"], link["tags"]) == (True, True, ["whyidle"])
    asking = [dashboard["panels"], dashboard["annotations"], dashboard["templating"]]
    used = set(re.findall(r"\$\{?([a-z_]\w*)", json.dumps(asking)))
    assert {name for name in used if not name.startswith("__")} <= set(names), "a variable that is not there"
    assert set(names) <= used | {"datasource"}, "a variable that nothing uses"


def test_a_node_includes_all_addresses_of_its_agent() -> None:
    """Otherwise an earlier address of the agent could be used instead of the current one, by alphabetical order."""
    [instance] = [one for one in DASHBOARDS["whyidle-node"]["templating"]["list"] if one["name"] == "instance"]
    assert instance["current"]["value"] == ["$__all"]
    assert "allValue" not in instance, "All is what is listed, not the agents of other nodes"
    assert "node=${node:json}" in instance["definition"]


def test_panels_are_complete(dashboard: Json) -> None:
    panels = list(output.panels_of(dashboard))
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in drawn(dashboard):
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_labels_reach_no_html_and_no_address_of_another_server(dashboard: Json) -> None:
    """Grafana shows labels as text in these panels. A text panel or an HTML cell would not."""
    for panel in output.panels_of(dashboard):
        assert panel["type"] not in ("text", "html"), panel["title"]
    text = json.dumps(dashboard)
    assert '"markdown"' not in text
    assert '"html"' not in text
    for url in re.findall(r'"url": "([^"]*)"', text):
        assert url.startswith(("/d/", "https://github.com/whyidle/whyidle/")), url
        assert not re.findall(r"\$\{__(?:value|data|field)[^}:]*\}", url), "a label that is not encoded"


def test_panels_do_not_overlap(dashboard: Json) -> None:
    folded = [panel["panels"] for panel in dashboard["panels"] if panel.get("collapsed")]
    for together in (dashboard["panels"], *folded):
        taken: set[tuple[int, int]] = set()
        for panel in together:
            place = panel["gridPos"]
            columns, lines = (range(place[at], place[at] + place[size]) for at, size in (("x", "w"), ("y", "h")))
            cells = {(x, y) for x in columns for y in lines}
            assert columns.stop <= 24
            assert not cells & taken, f"{panel['title']} lies on another panel"
            taken |= cells


def test_nothing_is_null_but_the_first_threshold(dashboard: Json) -> None:
    def nulls(value: Any, path: str) -> Iterator[str]:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from nulls(inner, f"{path}.{key}")
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                yield from nulls(inner, f"{path}[{index}]")
        elif value is None or value == "null":
            yield path

    assert [path for path in nulls(dashboard, "") if not path.endswith(".steps[0].value")] == []


def test_colours_of_families_differ_and_are_the_same_everywhere() -> None:
    assert len(set(FAMILY_COLOUR.values())) == len(FAMILY_COLOUR)
    assert len(set(CAUSE_SHADES.values())) == len(CAUSE_SHADES)


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus, of the Debian package of that name")
def test_compute_is_at_the_bottom_of_stacks(tmp_path: Path) -> None:
    """Grafana stacks series in the order of the answer, so a real Prometheus must return them in the order of the
    families."""
    shares = [("compute", "compute"), *sorted(CAUSE_FAMILY.items(), reverse=True), ("unhooked", UNHOOKED_FAMILY)]
    rules = [
        {"record": "whyidle:shares", "expr": "vector(1)", "labels": {"cause": cause, "family": family, "run": "a"}}
        for cause, family in dict.fromkeys(shares)
    ]
    file = tmp_path / "shares.yaml"
    file.write_text(write_yaml({"groups": [{"name": "shares", "rules": rules}]}))
    with prometheus(tmp_path, file) as server:
        until(lambda: len(server.query("whyidle:shares")) == len(rules))
        for asked in ("whyidle:shares", "sum by (family) (whyidle:shares)"):
            now = time.time()
            families = [labels["family"] for labels, _ in server.range(in_order(asked), now - 2, now, 1)]
            assert list(dict.fromkeys(families)) == [*FAMILIES, UNHOOKED_FAMILY], asked


def test_variables_have_the_format_that_matchers_need(dashboard: Json) -> None:
    """Variables that allow several values are patterns, others are the single value."""
    listed = {one["name"]: one["multi"] for one in dashboard["templating"]["list"] if one["type"] == "query"}
    asked = [target["expr"] for panel in drawn(dashboard) for target in panel["targets"]]
    asked += [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    asked += [one["expr"] for one in dashboard["annotations"]["list"]]
    places = {place for expr in asked for place in re.findall(r"(\S.?)\$(?:\{(\w+)(?::(\w+))?\}|(\w+))", expr)}
    for before, braced, form, bare in places:
        if (name := braced or bare) in listed and not before.endswith("["):
            assert (before, form) == (("~`", "regex") if listed[name] else (f"{before[0]}=", "json")), name


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus, of the Debian package of that name")
def test_a_run_name_with_regular_expression_characters_is_matched(tmp_path: Path) -> None:
    given = ("lr(2)", "a+b", "a|b", ".*", "r", 'say "hi"', "it's", "C:\\new", "50 %/ü", "`date`")
    names = [as_stored("run", name) for name in given]
    recorded = "run:whyidle_ranks:count"
    rules = [{"record": recorded, "expr": "vector(1)", "labels": {"owner": "o", "run": name}} for name in names]
    file = tmp_path / "runs.yaml"
    file.write_text(write_yaml({"groups": [{"name": "runs", "rules": rules}]}))
    with prometheus(tmp_path, file) as server:
        until(lambda: len(server.query(recorded)) == len(names))

        def found(matchers: str, run: str | list[str]) -> set[str]:
            owner = "o" if isinstance(run, str) else ["o"]
            expr = filled(
                f"{recorded}{{{in_words(matchers, DEFAULT)}}}", {"cluster": REGEX, "owner": owner, "run": run}
            )
            return {sample.labels["run"] for sample in server.query(expr)}

        for name in names:
            assert found(v.RUN, name) == {name}
            assert found(v.RUNS, [name, "r"]) == {name, "r"}


def test_grafana_knows_every_key(dashboard: Json) -> None:
    """Grafana's own schema, in its foundation SDK, reads the dashboard and writes it again: keys that are lost have no
    effect."""
    schema = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="needs grafana-foundation-sdk")
    plugins = importlib.import_module("grafana_foundation_sdk.cog.plugins")
    encoder = importlib.import_module("grafana_foundation_sdk.cog.encoder")
    plugins.register_default_plugins()
    back = json.loads(encoder.JSONEncoder().encode(schema.Dashboard.from_json(copy.deepcopy(dashboard))))
    assert sorted(set(paths(dashboard)) - set(paths(back))) == []


def paths(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from paths(inner, f"{path}[]")
    else:
        yield path


# -- the queries


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, of the Debian package prometheus")
def test_every_query_parses(dashboard: Json, tmp_path: Path) -> None:
    rules = [{"record": "checked", "expr": expr, "labels": {"where": where}} for where, expr in expressions(dashboard)]
    file = tmp_path / "queries.yaml"
    file.write_text(write_yaml({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", "--lint=none", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout


def test_every_metric_is_declared_or_recorded(dashboard: Json) -> None:
    recorded = {rule.name for group in groups() for rule in group.rules if isinstance(rule, Record)}
    histograms = {
        name + suffix for name, metric in METRIC.items() if metric.type == "histogram" for suffix in HISTOGRAM_SUFFIXES
    }
    unknown = {
        f"{where}: {name}"
        for where, expr in expressions(dashboard)
        for name in OWN_NAME.findall(expr)
        if name not in recorded | METRIC.keys() | histograms
    }
    assert unknown == set()


def test_matchers_name_labels_that_the_metric_has(dashboard: Json) -> None:
    """For metrics of the agent. `instance`, `job` and the cluster are labels that Prometheus adds."""
    wrong = set()
    for where, expr in expressions(dashboard):
        for name, matchers in re.findall(r"(?<![\w:])(whyidle_\w+)\{([^}]*)\}", expr):
            metric = METRIC.get(name) or METRIC[name.rsplit("_", 1)[0]]
            allowed = {*metric.labels, "instance", "job", DEFAULT.cluster_label, "le"}
            wrong |= {
                f"{where}: {name} {label}"
                for label in re.findall(r"(\w+)\s*(?:=|!=|=~|!~)\s*[\"`]", matchers)
                if label not in allowed
            }
    assert wrong == set()
