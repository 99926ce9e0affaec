"""Limits that keep a page of the dashboards readable: panels, bytes, names in a legend, rows of a table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import prod
from typing import Any

import pytest
from support_promql import selectors

from whyidle.agent.metrics import METRIC
from whyidle.alerts.config import HISTOGRAM_SUFFIXES
from whyidle.dashboards import output
from whyidle.ledger.causes import FAMILIES

Json = dict[str, Any]
DASHBOARDS = output.rendered()
MOST: dict[str, tuple[int, int]] = {
    # panels, and kilobytes of the file
    "whyidle-fleet": (17, 112),
    "whyidle-node": (35, 170),
    "whyidle-node-hardware": (76, 320),
    "whyidle-health": (18, 100),
}
COLUMN, LINE = 66, 38
"""Pixels of Grafana's grid on a page that is 1600 wide."""
TITLE = 56
"""Pixels of a panel's title and margins."""
LETTER, MARK, ENTRY = 6.6, 30, 24
"""Pixels of a letter, of the space before a name, and of a line of names."""
OF_THE_HEIGHT = 0.35
"""The part of a panel that Grafana gives to the legend below it. A longer legend has to be scrolled."""
ROWS = 64
WORST = 50
"""The largest value of the variable `worst`."""
ON_A_NODE: dict[str, int] = {
    "gpu": 8,
    "direction": 2,
    "family": len(FAMILIES) + 1,
    "mode": 8,
    "window": 3,
    "resource": 4,
    "kind": 2,
    "cause": 3,
}
"""Label -> how many values it has on a node, at most. For other labels, a query must limit its series."""
TYPICAL: dict[str, str] = {
    "owner": "team",
    "run": "llama-70b",
    "rank": "12",
    "role": "worker",
    "gpu": "0",
    "device": "mlx5_0",
    "mount": "/mnt/data",
    "filesystem": "lustre",
    "operation": "write",
    "cgroup": "…" + 20 * "a",
    "namespace": "host",
    "resource": "memory",
    "error": "remote_access",
}
"""Label -> what its values look like. For other labels, seven letters."""
BOUND = re.compile(r"\b(?:top|bottom)k\((\d+|\$worst)")


def panels(uid: str) -> list[Json]:
    return [panel for panel in output.panels_of(DASHBOARDS[uid]) if panel["type"] != "row"]


def bounds(expr: str) -> list[int]:
    return [WORST if found == "$worst" else int(found) for found in BOUND.findall(expr)]


def most_series(target: Json) -> float:
    """How many series a query can return, on one node with 8 GPUs."""
    if found := bounds(target["expr"]):
        return min(found)
    return prod(ON_A_NODE.get(label, float("inf")) for label in re.findall(r"{{(\w+)}}", target["legendFormat"]))


def width(legend: str) -> float:
    """Pixels of a name in a legend."""
    return MARK + LETTER * len(re.sub(r"{{(\w+)}}", lambda found: TYPICAL.get(found[1], 7 * "a"), legend))


def legends_that_do_not_fit(panel: Json) -> Iterator[str]:
    legend = panel.get("options", {}).get("legend", {})
    if panel["type"] != "timeseries" or not legend.get("showLegend"):
        return
    place = panel["gridPos"]
    if legend["placement"] == "right":
        lines, needed = (place["h"] * LINE - TITLE) / 22 - 1, sum(map(most_series, panel["targets"]))
    else:
        lines = (place["h"] * LINE - TITLE) * OF_THE_HEIGHT // ENTRY
        pixels = sum(most_series(target) * width(target["legendFormat"]) for target in panel["targets"])
        needed = pixels / (place["w"] * COLUMN - 30)
    if needed > lines:
        yield f"{panel['title']}: {needed:.1f} lines of names, and room for {lines:.0f}"


def tables_without_a_limit(panel: Json) -> Iterator[str]:
    if panel["type"] == "table":
        for target in panel["targets"]:
            if not any(bound <= ROWS for bound in bounds(target["expr"])):
                yield f"{panel['title']} {target['refId']}"


def unit_of(expr: str) -> set[str] | None:
    """The units in which the result of a query can be drawn, or None for recorded series."""
    asked = {METRIC.get(one.name) or METRIC.get(_stem(one.name)) for one in selectors(expr)}
    if None in asked or not asked:
        return None
    counters = {one.unit for one in asked if one and one.type == "counter"}
    gauges = {one.unit for one in asked if one and one.type == "gauge" and one.unit != "info"}
    if counters == {"seconds"}:
        return {"percentunit", "short", "count:GPUs"}  # seconds per second: a share of the time, or a number
    if counters == {"bytes"}:
        return {"percentunit"} if gauges else {"Bps"}
    if counters == {"joules"}:
        return {"watt"}
    if counters:
        counted = counters - {"seconds"}
        if " / " not in expr:
            return {"ops", "pps", "short"}
        return {"s"} if "seconds" in counters else {"percentunit", "short"} if len(counted) == 1 else {"short"}
    if " / " in expr:
        return {"percentunit"}
    [unit] = gauges
    drawn = {"bytes": "bytes", "bytes_per_second": "Bps", "seconds": "s", "watts": "watt", "celsius": "celsius"}
    return {drawn.get(unit, "short")}


def _stem(name: str) -> str:
    return next((name.removesuffix(one) for one in HISTOGRAM_SUFFIXES if name.endswith(one)), name)


def axes_that_mix_units(panel: Json) -> Iterator[str]:
    if panel["type"] != "timeseries":
        return
    drawn = panel["fieldConfig"]["defaults"]["unit"]
    for target in panel["targets"]:
        units = unit_of(target["expr"])
        if units is not None and drawn not in units:
            yield f"{panel['title']} {target['refId']}: {sorted(units)} in {drawn}"
        if re.search(r"\((s/s|B/s|s|ppm)\)", target["legendFormat"]):
            yield f"{panel['title']} {target['refId']}: the legend names a unit of its own"


@pytest.mark.parametrize("uid", MOST)
def test_pages_are_small(uid: str) -> None:
    most_panels, most_kilobytes = MOST[uid]
    assert len(panels(uid)) <= most_panels
    assert len(output.files()[f"{uid}.json"].encode()) <= most_kilobytes * 1000


@pytest.mark.parametrize("uid", MOST)
def test_rows_of_panels_are_full(uid: str) -> None:
    """A line that is too wide wraps, and leaves half a page empty."""
    pages = [DASHBOARDS[uid]["panels"], *(panel["panels"] for panel in DASHBOARDS[uid]["panels"] if "panels" in panel)]
    for page in pages:
        widths: dict[int, int] = {}
        for place in (panel["gridPos"] for panel in page if panel["type"] != "row"):
            widths[place["y"]] = widths.get(place["y"], 0) + place["w"]
        assert set(widths.values()) <= {24}, widths


@pytest.mark.parametrize("uid", MOST)
def test_legends_fit(uid: str) -> None:
    assert [wrong for panel in panels(uid) for wrong in legends_that_do_not_fit(panel)] == []


@pytest.mark.parametrize("uid", MOST)
def test_tables_have_a_limit(uid: str) -> None:
    assert [wrong for panel in panels(uid) for wrong in tables_without_a_limit(panel)] == []


@pytest.mark.parametrize("uid", MOST)
def test_no_axis_mixes_units(uid: str) -> None:
    assert [wrong for panel in panels(uid) for wrong in axes_that_mix_units(panel)] == []


def test_rows_of_devices_are_folded_and_not_repeated() -> None:
    """Grafana draws a row even if it is repeated by a variable without values (4.6 to 12). So the rows of Node are not
    for one kind of device, and those of Node hardware are folded, below a table of the node's devices."""
    rows = [panel for panel in DASHBOARDS["whyidle-node-hardware"]["panels"] if panel["type"] == "row"]
    assert [row["collapsed"] for row in rows] == [False] + [True] * (len(rows) - 1)
    assert not any('"repeat"' in json.dumps(dashboard) for dashboard in DASHBOARDS.values())


def test_checks_find_pages_that_are_too_large() -> None:
    def drawn(expr: str, legend: str, unit: str = "short") -> Json:
        target = {"refId": "A", "expr": expr, "legendFormat": legend}
        fields = {"defaults": {"unit": unit}}
        panel = {"type": "timeseries", "title": "T", "targets": [target], "fieldConfig": fields}
        return panel | {"options": {"legend": {"showLegend": True, "placement": "bottom"}}, "gridPos": {"w": 8, "h": 8}}

    assert [*legends_that_do_not_fit(drawn("sum by (device) (x)", "{{device}}"))]
    assert [*legends_that_do_not_fit(drawn("topk(32, x)", "{{device}}"))]
    assert not [*legends_that_do_not_fit(drawn("sum by (gpu) (x)", "{{gpu}} {{direction}}"))]
    assert [*tables_without_a_limit({**drawn("sum by (node) (x)", ""), "type": "table"})]
    assert [*axes_that_mix_units(drawn("rate(whyidle_disk_read_bytes_total[1m])", "", "pps"))]
    assert [*axes_that_mix_units(drawn("whyidle_memory_free_bytes", "", "Bps"))]
    assert [*axes_that_mix_units(drawn("rate(whyidle_disk_io_seconds_total[1m])", "busy (s/s)", "short"))]
