"""All dashboards, and the output pass: it adds what all dashboards share and removes what Grafana does not read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from grafanalib._gen import DashboardEncoder

from ..alerts.config import DEFAULT, Config
from ..alerts.tokens import filled
from . import fleet, hardware, health, node, overview, run
from .contrast import ground
from .library import Dashboard
from .variables import DATA_SOURCE, SETTINGS

BUILDERS: tuple[Callable[[], Dashboard], ...] = (
    *(overview.build, run.build, node.build, hardware.build, fleet.build, health.build),
)
"""The functions that build the dashboards, in the order in which people use the dashboards."""

TAG = "whyidle"
SCHEMA_VERSION = 39
"""The version of Grafana 11. Later versions of Grafana migrate it when they load a dashboard."""

Json = dict[str, Any]
_OPAQUE = re.compile("#[0-9A-Fa-f]{6}")

OF_AGENT = re.compile(r"(?<![\w:])((?:whyidle|process)_\w+)\{")
"""The beginning of a selector of series that the agent exports. Recorded series have a colon in the name."""

DEAD: dict[str, frozenset[str]] = {
    "dashboard": frozenset({"__inputs", "hideControls", "rows", "sharedCrosshair", "style", "gnetId"}),
    "panel": frozenset(
        {"editable", "error", "hideTimeOverride", "color", "columns", "fontSize", "mappings", "span", "transparent"}
    ),
    "target": frozenset({"query", "target", "metric", "step", "intervalFactor", "interval", "hide"}),
    "variable": frozenset({"useTags", "tags", "auto", "auto_min", "auto_count"}),
}
"""Fields that grafanalib writes and that Grafana has not read for years."""

GRAFANA_DEFAULTS: Json = {
    "axisPlacement": "auto",
    "barAlignment": 0,
    "gradientMode": "none",
    "hideFrom": {"tooltip": False, "viz": False, "legend": False},
    "lineInterpolation": "linear",
    "pointSize": 5,
    "scaleDistribution": {"type": "linear", "log": 2},
    "spanNulls": False,
    "stacking": {"mode": "none"},
    "thresholdsStyle": {"mode": "off"},
}
"""Fields that grafanalib writes for every panel with Grafana's default value."""

TARGET_DEFAULTS = (("format", "time_series"),)
"""The same for every query."""

LISTED = ("links", "tags", "list", "panels", "targets")
"""Lists that must be written even if they are empty."""


def rendered(config: Config = DEFAULT) -> dict[str, Json]:
    """uid -> the dashboard as Grafana imports it."""
    return {uid: json.loads(filled(json.dumps(each, ensure_ascii=False), config)) for uid, each in _built().items()}


def files(config: Config = DEFAULT) -> dict[str, str]:
    """The files that `whyidle dashboards --out` writes: name -> text."""
    return {f"{uid}.json": _dump(dashboard) for uid, dashboard in rendered(config).items()}


def config_maps(config: Config = DEFAULT) -> dict[str, str]:
    """One ConfigMap per dashboard, with the label that the sidecar of Grafana's chart looks for: name -> text."""
    return {f"{uid}.yaml": _config_map(uid, dashboard) for uid, dashboard in rendered(config).items()}


def unfit(config: Config) -> str:
    """Says which settings the dashboards cannot follow, and what to do. Empty if they follow all settings."""
    single = (DEFAULT.window, DEFAULT.long_window) == (config.window, config.long_window)
    if single and {*DEFAULT.windows} <= {*config.windows}:
        return ""
    return (
        f"the dashboards ask for what the rules record over {', '.join(DEFAULT.windows)}, with the window "
        f"{DEFAULT.window} and the long_window {DEFAULT.long_window}. Leave these settings as they are"
    )


def chart_files() -> dict[str, str]:
    """The files for the Helm chart: dashboards with tokens, which the chart replaces by settings. File name -> text."""
    return {f"{uid}.json": _compact(dashboard) + "\n" for uid, dashboard in _built().items()}


def _built() -> dict[str, Json]:
    """uid -> the dashboard, with tokens in place of settings."""
    dashboards = [render(build()) for build in BUILDERS]
    return {dashboard["uid"]: dashboard for dashboard in dashboards}


def render(dashboard: Dashboard) -> Json:
    """Applies the output pass to a dashboard and returns its JSON."""
    whole: Json = json.loads(json.dumps(dashboard.to_json_data(), cls=DashboardEncoder))
    for panel in panels_of(whole):
        _finish_panel(panel)
    _finish_variables(whole["templating"]["list"])
    whole["annotations"]["list"] = [_finish_annotation(entry) for entry in whole["annotations"]["list"]]
    del whole["timepicker"]
    whole["title"] = SETTINGS.dashboard_prefix + whole["title"].removeprefix(DEFAULT.dashboard_prefix)
    whole |= {"tags": [TAG], "links": [_links()], "schemaVersion": SCHEMA_VERSION, "editable": True}
    return _without_nothing(_without(whole, "dashboard"))


def panels_of(dashboard: Json) -> Iterator[Json]:
    """All panels, including rows and the panels inside collapsed rows."""
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


def _finish_panel(panel: Json) -> None:
    kept: Json
    if panel["type"] == "row":
        kept = {key: panel[key] for key in ("id", "type", "title", "gridPos", "collapsed", "panels")}
    else:
        kept = _without(panel, "panel") | {"targets": [_finish_target(target) for target in panel["targets"]]}
        kept["fieldConfig"].setdefault("overrides", [])
        kept["datasource"] = DATA_SOURCE
        _mend_thresholds(kept)
        _mend_custom(kept)
        _darken_grounds(kept)
    panel.clear()
    panel.update(kept)


def _finish_target(target: Json) -> Json:
    instant = bool(target["instant"])
    kept = {key: value for key, value in _without(target, "target").items() if (key, value) not in TARGET_DEFAULTS}
    return kept | {
        "expr": _selected(target["expr"]),
        "datasource": DATA_SOURCE,
        "editorMode": "code",
        "instant": instant,
        "range": not instant,
    }


def _mend_thresholds(panel: Json) -> None:
    """Removes thresholds without steps, and the lower bound of the first step."""
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    steps = defaults.get("thresholds", {}).get("steps")
    if not steps:
        defaults.pop("thresholds", None)
        return
    steps[0]["value"] = None


def _mend_custom(panel: Json) -> None:
    """Rewrites options that newer versions of Grafana read in another form than grafanalib writes."""
    custom = panel.get("fieldConfig", {}).get("defaults", {}).get("custom", {})
    for key, value in GRAFANA_DEFAULTS.items():
        if custom.get(key) == value:
            del custom[key]
    if "displayMode" in custom:  # the name in tables until Grafana 9
        custom["cellOptions"] = {"type": custom.pop("displayMode")}


def _darken_grounds(panel: Json) -> None:
    """Darkens the colours of panels and cells that have words on them, so that the words can be read."""
    defaults, overrides = panel["fieldConfig"]["defaults"], panel["fieldConfig"]["overrides"]
    if panel["type"] == "state-timeline" or panel.get("options", {}).get("colorMode") == "background":
        _darken(defaults)
    for one in overrides:
        properties = {entry["id"]: entry["value"] for entry in one["properties"]}
        if properties.get("custom.cellOptions", {}).get("type") == "color-background":
            _darken(properties)


def _darken(fields: Json) -> None:
    entries = [
        *(entry for mapping in fields.get("mappings", ()) for entry in mapping.get("options", {}).values()),
        *fields.get("thresholds", {}).get("steps", ()),
    ]
    for entry in entries:
        if _OPAQUE.fullmatch(entry.get("color") or ""):
            entry["color"] = ground(entry["color"])


def _finish_variables(variables: list[Json]) -> None:
    """Sets the current values of variables. All is ``$__all`` in Grafana. Data source and run are left to the user."""
    for variable in variables:
        kept = _without(variable, "variable")
        chosen = variable["current"].get("value")
        if variable["includeAll"]:
            kept["current"] = {"selected": True, "text": ["All"], "value": ["$__all"]}
        elif chosen or variable["type"] == "textbox":
            kept["current"] = {"selected": True, "text": chosen, "value": chosen}
        else:
            kept["current"] = {}
        if variable["type"] == "query":
            query = _selected(variable["query"])
            kept["definition"] = query
            kept["query"] = {"query": query, "refId": f"variable-{variable['name']}"}
        variable.clear()
        variable.update(kept)


def _finish_annotation(annotation: Json) -> Json:
    return {"datasource": DATA_SOURCE, "hide": False, **annotation, "expr": _selected(annotation["expr"])}


def _selected(expr: str) -> str:
    """Adds the setting `selector` to every selector of an agent's series."""
    return OF_AGENT.sub(rf"\1{{{SETTINGS.selector}, ", expr)


def _links() -> Json:
    """Links from every dashboard to all dashboards. They keep the time range and the variables."""
    return {
        "type": "dashboards",
        "title": "whyidle",
        "tags": [TAG],
        "asDropdown": False,
        "icon": "external link",
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "tooltip": "",
        "url": "",
    }


def _without(entry: Json, place: str) -> Json:
    return {key: value for key, value in entry.items() if key not in DEAD[place]}


def _without_nothing(value: Any, key: str = "") -> Any:
    """Drops empty values that are not needed, and nulls except for the bound of a threshold."""
    if isinstance(value, dict):
        finished = {name: _without_nothing(inner, name) for name, inner in value.items()}
        return {name: inner for name, inner in finished.items() if _says_something(name, inner, value)}
    if isinstance(value, list):
        return [_without_nothing(inner) for inner in value]
    return value


def _says_something(name: str, value: Any, of: Json) -> bool:
    if value is None:
        return name == "value" and "color" in of
    return (
        value not in ("", [], {})
        or name in LISTED
        or name in ("overrides", "current", "fields", "legendFormat", "title", "value")
    )


def _dump(dashboard: Json) -> str:
    return json.dumps(dashboard, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _config_map(uid: str, dashboard: Json) -> str:
    """YAML written by hand: a literal block needs no escapes.

    The JSON is on one line to stay small: `kubectl apply` accepts at most 256 KiB.
    """
    return (
        "apiVersion: v1\n"
        "kind: ConfigMap\n"
        "metadata:\n"
        f"  name: {uid}\n"
        "  labels:\n"
        "    app.kubernetes.io/name: whyidle\n"
        '    grafana_dashboard: "1"\n'
        "data:\n"
        f"  {uid}.json: |\n    {_compact(dashboard)}\n"
    )


def _compact(dashboard: Json) -> str:
    return json.dumps(dashboard, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
