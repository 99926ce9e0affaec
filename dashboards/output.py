"""All dashboards, and the one pass that each goes through: what Grafana does not read goes, what all have comes on."""

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
"""In the order in which a reader goes through them."""

TAG = "whyidle"
SCHEMA_VERSION = 39
"""Of Grafana 11; later ones migrate it when they load it."""

Json = dict[str, Any]
_OPAQUE = re.compile("#[0-9A-Fa-f]{6}")

OF_AGENT = re.compile(r"(?<![\w:])((?:whyidle|process)_\w+)\{")
"""The beginning of a selector of series that the agent exports; what rules record has a colon in its name."""

DEAD: dict[str, frozenset[str]] = {
    "dashboard": frozenset({"__inputs", "hideControls", "rows", "sharedCrosshair", "style", "gnetId"}),
    "panel": frozenset(
        {"editable", "error", "hideTimeOverride", "color", "columns", "fontSize", "mappings", "span", "transparent"}
    ),
    "target": frozenset({"query", "target", "metric", "step", "intervalFactor", "interval", "hide"}),
    "variable": frozenset({"useTags", "tags", "auto", "auto_min", "auto_count"}),
}
"""What grafanalib writes and Grafana has not read for years."""

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
"""What grafanalib says of every panel, and Grafana takes for granted."""

TARGET_DEFAULTS = (("format", "time_series"),)
"""The same of every query."""

LISTED = ("links", "tags", "list", "panels", "targets")
"""Lists that may be empty and still must be there."""


def rendered(config: Config = DEFAULT) -> dict[str, Json]:
    """uid -> the dashboard as Grafana imports it."""
    return {uid: json.loads(filled(json.dumps(each, ensure_ascii=False), config)) for uid, each in _built().items()}


def files(config: Config = DEFAULT) -> dict[str, str]:
    """The files that `whyidle dashboards --out` writes: name -> text."""
    return {f"{uid}.json": _dump(dashboard) for uid, dashboard in rendered(config).items()}


def config_maps(config: Config = DEFAULT) -> dict[str, str]:
    """One ConfigMap per dashboard, as the sidecar of Grafana's chart looks for them: name -> text."""
    return {f"{uid}.yaml": _config_map(uid, dashboard) for uid, dashboard in rendered(config).items()}


def unfit(config: Config) -> str:
    """What in a configuration the dashboards cannot follow, and what to do; empty if nothing is."""
    single = (DEFAULT.window, DEFAULT.long_window) == (config.window, config.long_window)
    if single and {*DEFAULT.windows} <= {*config.windows}:
        return ""
    return (
        f"the dashboards ask for what the rules record over {', '.join(DEFAULT.windows)}, with the window "
        f"{DEFAULT.window} and the long_window {DEFAULT.long_window}. Leave these settings as they are"
    )


def chart_files() -> dict[str, str]:
    """What the Helm chart reads: the dashboards with tokens, which it replaces by its settings. File name -> text."""
    return {f"{uid}.json": _compact(dashboard) + "\n" for uid, dashboard in _built().items()}


def _built() -> dict[str, Json]:
    """uid -> the dashboard, with tokens in place of settings."""
    dashboards = [render(build()) for build in BUILDERS]
    return {dashboard["uid"]: dashboard for dashboard in dashboards}


def render(dashboard: Dashboard) -> Json:
    """The output pass."""
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
    """All panels, rows and what is folded into them included."""
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
    """No steps are no thresholds, and the first step has no lower bound."""
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    steps = defaults.get("thresholds", {}).get("steps")
    if not steps:
        defaults.pop("thresholds", None)
        return
    steps[0]["value"] = None


def _mend_custom(panel: Json) -> None:
    """Where newer versions of Grafana want what grafanalib does not say so yet."""
    custom = panel.get("fieldConfig", {}).get("defaults", {}).get("custom", {})
    for key, value in GRAFANA_DEFAULTS.items():
        if custom.get(key) == value:
            del custom[key]
    if "displayMode" in custom:  # of tables, until Grafana 9
        custom["cellOptions"] = {"type": custom.pop("displayMode")}


def _darken_grounds(panel: Json) -> None:
    """Words stand on the colours of some panels and cells: there, colours are as dark as the words need them."""
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
    """The current value of All is a word of Grafana's own; a data source and a run are the reader's to choose."""
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
    """With the matchers that every series of the agent must meet."""
    return OF_AGENT.sub(rf"\1{{{SETTINGS.selector}, ", expr)


def _links() -> Json:
    """From every dashboard to every other, with the time range and the variables."""
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
    """Drops nulls, except as the bound of a threshold, and what is empty and need not be there."""
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
    """YAML by hand: a literal block needs no escapes. On one line, since `kubectl apply` takes no more than 256 KiB."""
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
