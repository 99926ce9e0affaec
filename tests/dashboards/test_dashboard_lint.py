"""A linter: the rules that every dashboard, recording rule and alert must follow.

Each rule is a function that says what is wrong with one panel, query or rule. The table at the end has a fault for each
rule, which it must find.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support_promql import Selector, functions, groupings, selectors

from whyidle.agent.metrics import METRIC, METRICS
from whyidle.alerts.config import DEFAULT, HISTOGRAM_SUFFIXES
from whyidle.alerts.output import groups
from whyidle.alerts.rule import Alert, Record
from whyidle.dashboards import output
from whyidle.dashboards.colours import CAUSE_SHADES, FAMILY_COLOUR
from whyidle.dashboards.queries import ORDER
from whyidle.ledger.causes import FAMILIES

Json = dict[str, Any]
DASHBOARDS = output.rendered()
GROUPS = groups()
RULES = [rule for group in GROUPS for rule in group.rules]
RECORDS = [rule for rule in RULES if isinstance(rule, Record)]
ALERTS = [rule for rule in RULES if isinstance(rule, Alert)]
RECORDED = {rule.name for rule in RECORDS}
RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"

RECORDED_NAME = re.compile(r"[a-z]+(_[a-z]+)*:[a-z]+(_[a-z]+)*:[a-z]+[0-9a-z_]*")
ALERT_NAME = re.compile(r"Whyidle([A-Z][a-z0-9]+)+")
LABEL_NAME = re.compile(r"[a-z][a-z_0-9]*")
DURATION = re.compile(r"(\d+(ms|[smhdw]))+")
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")
OF_COUNTERS = {"rate", "increase", "resets"}
LAST = {"last_over_time"}
"""Rules that keep the last value of a counter, to subtract it from the next."""
PRESENCE = {"absent", "absent_over_time", "count", "group", "timestamp", "present_over_time"}
EVER = re.compile(r"\s*\)\s*(>|==) 0\b|\s*offset \$?\w+\)")
"""After an aggregate of a counter: whether there was ever any, now or some time ago."""
CHOSEN = "$__window"
"""Replaces the window that the reader chooses."""
RAW_OVERVIEW = {"whyidle_collective_missing_seconds"}
ONE_OF_AN_AGENT = {"process_resident_memory_bytes", "whyidle_build_info"}
OTHERS = {
    *("up", "ALERTS", "ALERTS_FOR_STATE", "scrape_duration_seconds", "scrape_samples_scraped"),
    *("prometheus_rule_group_last_duration_seconds", "prometheus_rule_group_interval_seconds"),
    *("prometheus_rule_group_iterations_missed_total", "prometheus_rule_evaluation_failures_total"),
}
"""Prometheus's own series."""
OF_ONE_NODE = ("whyidle-node", "whyidle-node-hardware")

RAW: dict[str, str] = {
    "whyidle_rdma_unknown_files": "the dashboard lists the files themselves",
    "whyidle_nic_full_duplex": "half duplex is of the last century; kept for a doubtful link",
    "whyidle_nic_left_out_interfaces": "says how many series there are not, for who wonders",
    "whyidle_collective_calls_total": "Run draws waits by process group",
    "whyidle_collectives_total": "waits of any operation; Run draws them by process group",
    "whyidle_group_calls_total": "Run draws the waits; for who wants the mean of a call",
    "whyidle_rank_stopped": "whyidle goodput",
    "whyidle_rank_restored_step": "whyidle goodput",
    "whyidle_waited_for_seconds_total": "rules read its sums by run and node; for who looks at one rank",
    "whyidle_compute_observed_seconds_total": "how much of compute the GPU's counters cover; reports say it",
    "whyidle_gpu_other_busy_seconds_total": "alerts and reports name the other process",
    "whyidle_cpu_frequency_limit_ratio": "evidence of alerts",
    "whyidle_gpu_performance_state": "the clocks themselves are drawn",
    "whyidle_cgroup_cpu_throttled_seconds_total": "summed over CPUs, so no share; the periods are drawn",
    "whyidle_clock_frequency_ratio": "what a time daemon does; what is left of the error is drawn",
    "whyidle_clock_tai_offset_seconds": "a constant of the calendar",
    "process_max_fds": "a limit, next to process_open_fds; both are a convention of Prometheus",
    "process_open_fds": "a convention of Prometheus: every client exports it",
    "process_virtual_memory_bytes": "a convention of Prometheus: says nothing of memory in use",
}
"""Metrics that are declared and not used in any rule or panel, with the reason. It is an error if one of them is used.
"""


# -- what is checked


@dataclass(frozen=True)
class Query:
    """One query of a dashboard, with the dashboard's variables filled in; ``$__`` variables stay."""

    where: str
    dashboard: str
    expr: str
    panel: Json
    instant: bool


def panels() -> Iterator[tuple[str, Json]]:
    """Panels that draw something, and their places."""
    for uid, dashboard in DASHBOARDS.items():
        for panel in output.panels_of(dashboard):
            if panel["type"] not in ("row", "text"):
                yield f"{uid}: {panel['title']}", panel


def queries() -> Iterator[Query]:
    for uid, dashboard in DASHBOARDS.items():
        for panel in output.panels_of(dashboard):
            for target in panel.get("targets", ()):
                for expr in filled(target["expr"]):
                    yield Query(f"{uid}: {panel['title']} {target['refId']}", uid, expr, panel, target["instant"])


def filled(expr: str) -> Iterator[str]:
    """With every window that a reader can choose, in the form of names of recorded series."""
    expr = re.sub(r"\$\{(\w+):\w+\}", r"$\1", expr)  # the linter does not check formats
    expr = re.sub(r"\[\$(\{window\}|window\b)\]", f"[{CHOSEN}]", expr)
    windows = DEFAULT.windows if re.search(r"\$\{?window", expr) else ("",)
    for window in windows:
        yield re.sub(r"\$(\{window\}|window\b)", window, expr)


def expressions() -> Iterator[tuple[str, str]]:
    yield from ((query.where, query.expr) for query in queries())
    yield from ((rule.name, rule.expr) for rule in RULES)


QUERIES = list(queries())
PANELS = list(panels())


def base(name: str) -> str:
    """The declared metric that a series belongs to, or its own name."""
    for suffix in HISTOGRAM_SUFFIXES:
        stem = name.removesuffix(suffix)
        if stem != name and stem in METRIC and METRIC[stem].type == "histogram":
            return stem
    return name


def named(selector: Selector, known: set[str]) -> set[str]:
    """The series that a selector names, by name or by a pattern."""
    if re.fullmatch(r"[\w:]+", selector.name):
        return {selector.name}
    return {name for name in known if re.fullmatch(selector.name, name)}


def used() -> set[str]:
    """Every declared or recorded series that something selects."""
    known = {*METRIC, *RECORDED}
    found = {base(name) for _, expr in expressions() for one in selectors(expr) for name in named(one, known)}
    variables = json.dumps([dashboard["templating"] for dashboard in DASHBOARDS.values()])
    annotations = json.dumps([dashboard["annotations"] for dashboard in DASHBOARDS.values()])
    return found | {name for name in known if name in variables or name in annotations}


# -- rules of expressions: what is wrong with one


ASKED_FOR_ZERO = ("sum by (cluster, owner, run) (whyidle_run_steps_total",)
"""The beginnings of expressions whose value is only compared with 0: whether a run has ever made a step."""


def counters_are_rated(expr: str) -> Iterator[str]:
    for selector in [] if expr.startswith(ASKED_FOR_ZERO) else selectors(expr):
        metric = METRIC.get(base(selector.name))
        if metric is None or metric.type == "gauge":
            continue
        if selector.inside not in OF_COUNTERS | PRESENCE | LAST and not EVER.match(selector.after):
            yield f"the counter {selector.name} as it stands: take its rate"


def gauges_are_not_rated(expr: str) -> Iterator[str]:
    for selector in selectors(expr):
        metric = METRIC.get(base(selector.name))
        if metric is not None and metric.type == "gauge" and selector.inside in OF_COUNTERS | {"irate"}:
            yield f"{selector.inside} of the gauge {selector.name}"


def rates_come_first(expr: str) -> Iterator[str]:
    """A sum of counters falls when one of them starts again from 0."""
    if re.search(r"\b(rate|increase)\s*\(\s*(sum|max|min|avg|count)\b", expr):
        yield "a rate of an aggregate: aggregate the rates"


def no_irate(expr: str) -> Iterator[str]:
    if "irate" in functions(expr):
        yield "irate sees the last two samples of a point alone, and misses the rest"


def names_exist(expr: str) -> Iterator[str]:
    known = {*METRIC, *RECORDED}
    for selector in selectors(expr):
        if not {base(name) for name in named(selector, known)} & (known | OTHERS):
            yield f"nobody exports or records {selector.name}"


def clusters_stay_apart(expr: str) -> Iterator[str]:
    """Runs and nodes of two clusters may have the same name."""
    for word, labels in groupings(expr):
        if word in ("by", "on") and {"run", "node"} & set(labels) and DEFAULT.cluster_label not in labels:
            yield f"{word} ({', '.join(labels)}) mixes clusters"


def owners_stay_apart(expr: str) -> Iterator[str]:
    """Runs of two owners may have the same name."""
    for word, labels in groupings(expr):
        if word in ("by", "on") and "run" in labels and "owner" not in labels:
            yield f"{word} ({', '.join(labels)}) mixes owners"


# -- rules of queries


def rates_follow_the_resolution(query: Query) -> Iterator[str]:
    """A fixed window misses samples between the points of a long range, and has none in a short one.

    A query at the end of the range may have the window of the rules.
    """
    fitting = {"$__rate_interval", "$__range", CHOSEN, *([DEFAULT.window] if query.instant else [])}
    for selector in selectors(query.expr):
        if selector.inside in OF_COUNTERS and selector.window not in fitting:
            yield f"{selector.inside} over [{selector.window}]"
        if selector.window == "$__range" and not query.instant and "] @ end()" not in selector.after:
            yield f"{selector.name}[$__range] at every point"


def subqueries_fit_into_memory(query: Query) -> Iterator[str]:
    """A query every 30 s over 30 days for all families of 80 runs is 69 million samples. The limit is 50 million."""
    for step in re.findall(r"\[\$\{?__range\}?:([^\]]*)\]", query.expr):
        if step != "$__interval":
            yield f"looks at the time range every {step}, however long that is"


def clusters_are_chosen(query: Query) -> Iterator[str]:
    for selector in selectors(query.expr):
        if f"{DEFAULT.cluster_label}=~`$cluster`" not in selector.matchers:
            yield f"{selector.name} without the variable cluster"


def fleets_ask_what_is_recorded(query: Query) -> Iterator[str]:
    if query.dashboard in ("whyidle-fleet", "whyidle-overview"):
        for selector in selectors(query.expr):
            if selector.name in METRIC and selector.name not in RAW_OVERVIEW:
                yield f"the raw series {selector.name}, of every rank or node there is"


def health_asks_little_over_time(query: Query) -> Iterator[str]:
    """The Health page queries all agents: over time only recorded series, and gauges of which each agent has one."""
    if query.dashboard == "whyidle-health" and not query.instant:
        for selector in selectors(query.expr):
            if selector.name in METRIC and selector.name not in ONE_OF_AN_AGENT:
                yield f"the raw series {selector.name} of all agents over time"


def nodes_are_found_by_address(query: Query) -> Iterator[str]:
    """A node's raw counters are selected by the address of its agent: a join would evaluate all nodes first."""
    if query.dashboard in OF_ONE_NODE:
        for selector in selectors(query.expr):
            if selector.name in METRIC and "instance=~`$instance`" not in selector.matchers:
                yield f"{selector.name} of all nodes"


def legends_tell_series_apart(query: Query) -> Iterator[str]:
    [target] = [one for one in query.panel["targets"] if query.where.endswith(f" {one['refId']}")]
    if query.panel["type"] == "timeseries" and target.get("legendFormat", "") in ("", "__auto"):
        together = [labels for word, labels in groupings(query.expr) if word == "by"]
        if together or "by" in query.expr or len(query.panel["targets"]) > 1:
            yield "several series and no legend"


# -- rules of panels


def says_what_it_is(panel: Json) -> Iterator[str]:
    title, is_sentence = panel.get("title", "x"), panel.get("options", {}).get("textMode") == "name"
    if title[:1].islower() or not (title or is_sentence):
        yield "a title that begins with no capital"
    description = panel.get("description", "")
    if len(description) < 20 or not description.endswith("."):
        yield f"no description in sentences: {description!r}"


def has_units(panel: Json) -> Iterator[str]:
    if panel["type"] != "table":
        if not panel["fieldConfig"]["defaults"].get("unit"):
            yield "no unit"
        return
    units = {
        override["matcher"]["options"]: {one["id"] for one in override["properties"]}
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"]["id"] == "byName"
    }
    yield from (f"column {column} has no unit" for column, of in units.items() if "unit" not in of)


def shares_are_ratios(panel: Json) -> Iterator[str]:
    """A quotient of the same units, or a recorded ratio, is drawn in percent."""
    ratio = all(re.match(r"\S*:ratio\S*\{[^{}]*\}$", target["expr"]) for target in panel["targets"])
    unit = panel["fieldConfig"]["defaults"].get("unit")
    if panel["targets"] and panel["type"] == "timeseries" and ratio and unit != "percentunit":
        yield f"a ratio in {unit}"


def units_fit(panel: Json) -> Iterator[str]:
    """What is drawn in bytes or seconds is declared in them. Other units do not say what may be in one panel."""
    unit = panel["fieldConfig"]["defaults"].get("unit")
    declared = {"bytes": "bytes", "Bps": "bytes", "s": "seconds", "celsius": "celsius"}.get(unit)
    if panel["type"] != "timeseries" or declared is None:
        return
    for target in panel["targets"]:
        asked = [METRIC[one.name].unit if one.name in METRIC else one.name for one in selectors(target["expr"])]
        if not any(declared in one for one in asked):
            yield f"{' and '.join(asked)} in {unit}"


def families_keep_their_colours(panel: Json) -> Iterator[str]:
    wanted = {**CAUSE_SHADES, **FAMILY_COLOUR}
    overrides = panel.get("fieldConfig", {}).get("overrides", ())
    found = {
        override["matcher"]["options"]: one["value"].get("fixedColor")
        for override in overrides
        for one in override["properties"]
        if one["id"] == "color"
    }
    for name, colour in found.items():
        if name in wanted and colour not in (CAUSE_SHADES.get(name), FAMILY_COLOUR.get(name)):
            yield f"{name} in {colour}"
    legends = {target.get("legendFormat") for target in panel.get("targets", ())}
    drawn = panel["type"] in ("timeseries", "bargauge", "piechart")
    if drawn and "{{family}}" in legends and not FAMILY_COLOUR.keys() <= found.keys():
        yield "families without their colours"


def stacks_are_in_order(panel: Json) -> Iterator[str]:
    """Compute is lowest in every stack. Grafana uses the order of the series, which is by their first label."""
    custom = panel["fieldConfig"]["defaults"].get("custom", {})
    if custom.get("stacking", {}).get("mode", "none") == "none":
        return
    for target in panel["targets"]:
        named = {"{{family}}", "{{cause}}"} & {target.get("legendFormat")}
        if named and f'"{ORDER}", "0", "family", "{FAMILIES[0]}")' not in target["expr"]:
            yield f"{named.pop()} stacked by the alphabet"


def legends_are_sorted(panel: Json) -> Iterator[str]:
    """A legend with values is read from the top, where the largest current value is."""
    legend = panel.get("options", {}).get("legend", {})
    if panel["type"] != "timeseries" or legend.get("displayMode") != "table":
        return
    if (legend.get("sortBy"), legend.get("sortDesc")) != ("Last *", True) or "lastNotNull" not in legend["calcs"]:
        yield "a legend with values that is not sorted by the last"


def amounts_keep_their_digits(panel: Json) -> Iterator[str]:
    """GPU-hours are thousands in a fleet and hundredths in a test, so a fixed number of decimals would round those to
    0."""
    fields = [panel["fieldConfig"]["defaults"]]
    for one in panel["fieldConfig"]["overrides"]:
        fields.append({entry["id"]: entry["value"] for entry in one["properties"]})
    yield from (
        f"{one['unit']} with decimals" for one in fields if one.get("unit") == "count:GPU-h" and "decimals" in one
    )


def absence_is_explained(panel: Json) -> Iterator[str]:
    """The empty panel itself says what that means, because nobody opens a description to find out."""
    if re.search(r"\bEmpty\b", panel.get("description", "")):
        yield "a description that explains an empty panel"


def thresholds_rise(panel: Json) -> Iterator[str]:
    steps = panel.get("fieldConfig", {}).get("defaults", {}).get("thresholds", {}).get("steps", [])
    bounds = [step["value"] for step in steps[1:]]
    if bounds != sorted(bounds) or (steps and steps[0]["value"] is not None):
        yield f"thresholds {[step['value'] for step in steps]}"


def links_to_a_run_name_its_owner(panel: Json) -> Iterator[str]:
    for url in re.findall(r"/d/whyidle-run\?[^\"]*", json.dumps(panel)):
        if "var-run=" in url and "var-owner=" not in url:
            yield f"{url} does not say whose run"


def links_lead_somewhere(panel: Json) -> Iterator[str]:
    for uid, rest in re.findall(r"/d/([\w-]+)\?([^\"]*)", json.dumps(panel)):
        target = DASHBOARDS.get(uid)
        if target is None:
            yield f"a link to {uid}, which is not there"
            continue
        there = {variable["name"] for variable in target["templating"]["list"]}
        yield from (f"a link sets {name} of {uid}" for name in re.findall(r"var-(\w+)=", rest) if name not in there)
        if "__url_time_range" not in rest:
            yield f"a link to {uid} loses the time range"


# -- rules of alerts and recording rules


def alerts_say_what_to_do(alert: Alert) -> Iterator[str]:
    if alert.severity not in ("critical", "warning", "info"):
        yield f"severity {alert.severity}"
    if len(re.sub(r"{{.*?}}", "", alert.summary)) > 120 or not alert.summary.endswith("."):
        yield f"a summary that is long, or no sentence: {alert.summary!r}"
    if not re.sub(r"{{.*?}}", "", alert.description).endswith("."):
        yield f"a description that is no sentence: {alert.description!r}"
    if f"{{{alert.name.lower()}}}" not in _anchors():
        yield "no section in docs/runbook.md"


def alerts_keep_values_out_of_labels(alert: Alert) -> Iterator[str]:
    """With a value in a label, each evaluation makes another alert, which never fires."""
    for name, text in alert.labels.items():
        if "{{" in text:
            yield f"label {name} is a template: {text}"


def alerts_rank_nothing(alert: Alert) -> Iterator[str]:
    """The worst series change from one evaluation to the next, so `for` would start again."""
    yield from (f"{name} in an alert" for name in functions(alert.expr) & {"topk", "bottomk"})


def alerts_are_named_and_timed(alert: Alert) -> Iterator[str]:
    if not ALERT_NAME.fullmatch(alert.name):
        yield "a name that is not Whyidle... in capitals"
    for duration in filter(None, (alert.for_, alert.keep_firing_for)):
        if not DURATION.fullmatch(duration):
            yield f"duration {duration}"


def records_are_named_by_level(record: Record) -> Iterator[str]:
    if not RECORDED_NAME.fullmatch(record.name):
        yield "not named level:metric:operations"
    for label in record.labels:
        if not LABEL_NAME.fullmatch(label) or "{{" in record.labels[label]:
            yield f"label {label}"


def _anchors() -> set[str]:
    text = RUNBOOK.read_text(encoding="utf-8")
    return {f"{{{heading.strip().lower()}}}" for heading in re.findall(r"^#+ +(\w+)\s*$", text, re.MULTILINE)}


# -- the tests

OF_EXPRESSIONS: tuple[Callable[[str], Iterator[str]], ...] = (
    counters_are_rated,
    gauges_are_not_rated,
    rates_come_first,
    no_irate,
    names_exist,
)
OF_QUERIES: tuple[Callable[[Query], Iterator[str]], ...] = (
    rates_follow_the_resolution,
    subqueries_fit_into_memory,
    clusters_are_chosen,
    fleets_ask_what_is_recorded,
    health_asks_little_over_time,
    nodes_are_found_by_address,
    legends_tell_series_apart,
)
OF_PANELS: tuple[Callable[[Json], Iterator[str]], ...] = (
    says_what_it_is,
    has_units,
    shares_are_ratios,
    units_fit,
    families_keep_their_colours,
    stacks_are_in_order,
    legends_are_sorted,
    amounts_keep_their_digits,
    absence_is_explained,
    thresholds_rise,
    links_lead_somewhere,
    links_to_a_run_name_its_owner,
)
OF_ALERTS: tuple[Callable[[Alert], Iterator[str]], ...] = (
    alerts_say_what_to_do,
    alerts_keep_values_out_of_labels,
    alerts_rank_nothing,
    alerts_are_named_and_timed,
)


def name(rule: object) -> str:
    return getattr(rule, "__name__", "")


@pytest.mark.parametrize("rule", OF_EXPRESSIONS, ids=name)
def test_expressions_pass_the_linter(rule: Callable[[str], Iterator[str]]) -> None:
    assert {f"{where}: {wrong}" for where, expr in expressions() for wrong in rule(expr)} == set()


@pytest.mark.parametrize("rule", OF_QUERIES, ids=name)
def test_queries_pass_the_linter(rule: Callable[[Query], Iterator[str]]) -> None:
    assert {f"{query.where}: {wrong}" for query in QUERIES for wrong in rule(query)} == set()


@pytest.mark.parametrize("rule", OF_PANELS, ids=name)
def test_panels_pass_the_linter(rule: Callable[[Json], Iterator[str]]) -> None:
    assert {f"{where}: {wrong}" for where, panel in PANELS for wrong in rule(panel)} == set()


@pytest.mark.parametrize("rule", OF_ALERTS, ids=name)
def test_alerts_pass_the_linter(rule: Callable[[Alert], Iterator[str]]) -> None:
    assert {f"{alert.name}: {wrong}" for alert in ALERTS for wrong in rule(alert)} == set()


def test_recording_rules_pass_the_linter() -> None:
    assert {f"{record.name}: {wrong}" for record in RECORDS for wrong in records_are_named_by_level(record)} == set()
    mixed = {f"{rule.name}: {wrong}" for rule in RULES for wrong in clusters_stay_apart(rule.expr)}
    assert mixed == set()


def test_names_are_distinct() -> None:
    assert len({(alert.name, alert.severity) for alert in ALERTS}) == len(ALERTS)
    assert len({group.name for group in GROUPS}) == len(GROUPS)
    for uid, dashboard in DASHBOARDS.items():
        titles = [panel["title"] for panel in output.panels_of(dashboard) if panel["type"] != "row"]
        assert sorted(titles) == sorted(set(titles)), f"{uid}: a title that stands twice"


def test_every_declared_metric_is_used_or_listed_as_raw() -> None:
    found = used()
    assert [metric.name for metric in METRICS if metric.name not in {*found, *RAW}] == []
    assert [name for name in RAW if name in found or name not in METRIC] == [], "raw, and yet used, or not declared"


def test_every_recorded_series_is_used() -> None:
    """By a panel, an alert, or another rule. The windows of one series count as one."""

    def stem(name: str) -> str:
        return re.sub(rf"({'|'.join(DEFAULT.windows)})$", "", name)

    asked = {
        stem(selected)
        for where, expr in expressions()
        for one in selectors(expr)
        for selected in named(one, RECORDED)
        if selected != where
    }
    asked |= {stem(one) for one in used() & RECORDED}
    assert sorted({one for one in RECORDED if stem(one) not in asked}) == []


# -- the linter itself

BAD_EXPRESSIONS = (
    (counters_are_rated, "sum(whyidle_steps_total)"),
    (counters_are_rated, "sum by (run) (max_over_time(whyidle_steps_total[5m]))"),
    (counters_are_rated, 'histogram_quantile(0.5, whyidle_step_seconds_bucket{run="a"})'),
    (gauges_are_not_rated, "rate(whyidle_gpu_power_watts[5m])"),
    (rates_come_first, "rate(sum by (run) (whyidle_steps_total)[5m:])"),
    (no_irate, "irate(whyidle_steps_total[5m])"),
    (names_exist, 'whyidle_steps_totall{run="a"}'),
    (names_exist, '{__name__=~"nobody:.*"}'),
    (clusters_stay_apart, "sum by (run) (rate(whyidle_steps_total[5m]))"),
    (clusters_stay_apart, "a * on (node) group_left () b"),
    (owners_stay_apart, "sum by (cluster, run) (rate(whyidle_steps_total[5m]))"),
    (owners_stay_apart, "a * on (cluster, run, rank) group_left () b"),
)
GOOD_EXPRESSIONS = (
    'sum by (cluster, owner, run) (rate(whyidle_steps_total{run=~"a{2}"}[5m])) > bool 1e3',
    "histogram_quantile(0.5, sum by (le) (rate(whyidle_step_seconds_bucket[5m])))",
    "absent(whyidle_steps_total) or vector(0) unless whyidle_rank_up offset 5m",
    'label_replace(whyidle_rank_info, "to", "whyidle_steps_total", "run", "(.*)") @ end()',
)
A_QUERY = Query(
    "whyidle-fleet: Steps A",
    "whyidle-fleet",
    "",
    {"type": "timeseries", "targets": [{"refId": "A", "legendFormat": ""}]},
    False,
)
BAD_QUERIES = (
    (rates_follow_the_resolution, A_QUERY, "rate(whyidle_steps_total[5m])"),
    (rates_follow_the_resolution, A_QUERY, "increase(whyidle_steps_total[$__range])"),
    (subqueries_fit_into_memory, A_QUERY, "sum_over_time(run:whyidle_ranks:count[${__range}:30s])"),
    (clusters_are_chosen, A_QUERY, 'run:whyidle_ranks:count{run="a"}'),
    (fleets_ask_what_is_recorded, A_QUERY, "rate(whyidle_steps_total[$__rate_interval])"),
    (health_asks_little_over_time, replace(A_QUERY, dashboard="whyidle-health"), "whyidle_collector_age_seconds"),
    (nodes_are_found_by_address, replace(A_QUERY, dashboard="whyidle-node"), "whyidle_gpu_power_watts"),
    (legends_tell_series_apart, A_QUERY, "sum by (run) (run:whyidle_ranks:count)"),
)
A_PANEL: Json = {
    "type": "timeseries",
    "title": "Steps",
    "description": "Steps per second of each of the runs.",
    "fieldConfig": {"defaults": {"unit": "ops"}, "overrides": []},
    "targets": [{"expr": "run:whyidle_steps:rate5m{}", "legendFormat": "{{run}}"}],
}


def coloured(panel: Json, of: str, colour: str) -> Json:
    value = {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}
    override = {"matcher": {"id": "byName", "options": of}, "properties": [value]}
    return {**panel, "fieldConfig": {**panel["fieldConfig"], "overrides": [override]}}


def defaults(**changed: Any) -> Json:
    return {**A_PANEL, "fieldConfig": {"defaults": changed, "overrides": []}}


def stacked(expr: str) -> Json:
    panel = defaults(custom={"stacking": {"mode": "normal"}})
    return {**panel, "targets": [{"expr": expr, "legendFormat": "{{family}}"}]}


BAD_PANELS = (
    (says_what_it_is, {**A_PANEL, "title": "steps"}),
    (says_what_it_is, {**A_PANEL, "description": "Steps"}),
    (has_units, defaults()),
    (has_units, {**coloured(A_PANEL, "Run", "red"), "type": "table"}),
    (shares_are_ratios, {**A_PANEL, "targets": [{"expr": "run_family:whyidle_share:ratio5m{}"}]}),
    (units_fit, {**defaults(unit="Bps"), "targets": [{"expr": "rate(whyidle_steps_total[5m])"}]}),
    (families_keep_their_colours, coloured(A_PANEL, "storage", "#000000")),
    (families_keep_their_colours, {**A_PANEL, "targets": [{"expr": "", "legendFormat": "{{family}}"}]}),
    (stacks_are_in_order, stacked("sum by (family) (x)")),
    (legends_are_sorted, {**A_PANEL, "options": {"legend": {"displayMode": "table", "calcs": ["lastNotNull"]}}}),
    (amounts_keep_their_digits, defaults(unit="count:GPU-h", decimals=1)),
    (absence_is_explained, {**A_PANEL, "description": "Steps of each of the runs. Empty without any."}),
    (thresholds_rise, defaults(thresholds={"steps": [{"value": None}, {"value": 2}, {"value": 1}]})),
    (links_lead_somewhere, {**A_PANEL, "links": [{"url": "/d/whyidle-nowhere?var-run=a&${__url_time_range}"}]}),
    (links_lead_somewhere, {**A_PANEL, "links": [{"url": "/d/whyidle-run?var-rum=a&${__url_time_range}"}]}),
    (links_lead_somewhere, {**A_PANEL, "links": [{"url": "/d/whyidle-run?var-run=a"}]}),
    (links_to_a_run_name_its_owner, {**A_PANEL, "links": [{"url": "/d/whyidle-run?var-run=a&${__url_time_range}"}]}),
)
AN_ALERT = Alert("WhyidleNothing", "vector(1)", "5m", "info", "All is well.", "Nothing to do.")
BAD_ALERTS = (
    (alerts_say_what_to_do, replace(AN_ALERT, summary="All is well")),
    (alerts_say_what_to_do, AN_ALERT),
    (alerts_keep_values_out_of_labels, replace(AN_ALERT, labels={"value": "{{ $value }}"})),
    (alerts_rank_nothing, replace(AN_ALERT, expr="topk by (run) (3, run:whyidle_ranks:count)")),
    (alerts_are_named_and_timed, replace(AN_ALERT, name="nothing_at_all")),
    (alerts_are_named_and_timed, replace(AN_ALERT, for_="five minutes")),
)


def test_linter_finds_each_fault() -> None:
    for rule, expr in BAD_EXPRESSIONS:
        assert list(rule(expr)), f"{name(rule)} lets pass {expr}"
    for rule, query, expr in BAD_QUERIES:
        assert list(rule(replace(query, expr=expr))), f"{name(rule)} lets pass {expr}"
    for rule, panel in BAD_PANELS:
        assert list(rule(panel)), f"{name(rule)} lets pass {panel}"
    for rule, alert in BAD_ALERTS:
        assert list(rule(alert)), f"{name(rule)} lets pass {alert}"


def test_linter_accepts_correct_examples() -> None:
    for expr in GOOD_EXPRESSIONS:
        assert [wrong for rule in OF_EXPRESSIONS for wrong in rule(expr)] == [], expr
    assert [wrong for rule in OF_PANELS for wrong in rule(A_PANEL)] == []
