"""The kinds of panels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import attr

from ..agent.metrics.gpu import UNHOOKED_FAMILY
from .colours import BILL_COLOUR, BLUE, CAUSE_SHADES, FAINT, FAMILY_COLOUR, INFERNO, UNHOOKED
from .library import Panel, Target, core
from .queries import in_order
from .values import Json, Link, Step, Unit, data_links, threshold_steps
from .variables import SETTINGS

PLAIN: tuple[Step, ...] = ((None, "text"),)
"""For values that are neither good nor bad. Without any thresholds, Grafana would use its own: red from 80 on."""
CELLS = 120
"""The most cells in a row. More would be too narrow."""
STATES = 200
"""The most points in a row of states."""
RAMP: tuple[Step, ...] = tuple(zip((None, 10, 20, 30, 40, 50, 60, 70, 80, 90), INFERNO, strict=True))
"""Thresholds in per cent of the highest value. Older versions of Grafana do not have this scale of colours."""


def trend(
    title: str,
    description: str,
    *queries: Target,
    unit: Unit,
    width: int = 12,
    thresholds: Sequence[Step] = (),
    dashed: bool = False,
    colours: Mapping[str, str] | None = None,
    stacked: bool = False,
    fill: int = 0,
    least: float | None = 0,
    most: float | None = None,
    legend: Literal["list", "table", "hidden"] = "list",
    links: Sequence[Link] = (),
    dotted: Sequence[str] = (),
    by_family: bool = False,
    nothing: str = "",
) -> Panel:
    """Lines over time. ``dotted`` names series that are limits or references, not measurements.

    ``by_family`` is for legends that end with a family. ``nothing`` is shown if there is no series.
    """
    reference = {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 10]}}
    overrides = _fixed_colours(colours or {}) + [override(name, reference, _plain()) for name in dotted]
    overrides += _colours_by_ending(FAMILY_COLOUR) if by_family else []
    # If all values are 0, Grafana would draw an axis up to 10,000 %.
    soft = {"axisSoftMax": 0.1} if unit == "percentunit" and most is None else {}
    sorted_by = {"sortBy": "Last *", "sortDesc": True} if legend == "table" else {}
    return core.TimeSeries(
        **common(title, description, queries, width, thresholds),
        unit=unit,
        fillOpacity=70 if stacked else fill,
        lineWidth=0 if stacked else 1,
        stacking={"mode": "normal", "group": "A"} if stacked else {"mode": "none"},
        showPoints="auto",
        spanNulls=False,
        tooltipMode="multi",
        tooltipSort="desc",
        legendDisplayMode="table" if legend == "table" else "list",
        legendCalcs=["lastNotNull", "mean"] if legend == "table" else [],
        legendPlacement="right" if legend == "table" else "bottom",
        thresholdsStyleMode="dashed" if dashed and thresholds else "off",
        overrides=overrides,
        extraJson=more(
            {"min": least, "max": most, "links": data_links(links), "noValue": nothing, "custom": soft},
            options={"legend": {"showLegend": legend != "hidden", **sorted_by}},
        ),
    )


def share(
    title: str,
    description: str,
    *queries: Target,
    of: Literal["family", "cause"] = "family",
    width: int = 24,
    links: Sequence[Link] = (),
) -> Panel:
    """Shares by family or cause, stacked to 100 % in the common order of families."""
    for target in queries:
        target.expr = in_order(target.expr)
    return trend(
        title,
        description,
        *queries,
        unit="percentunit",
        width=width,
        colours={**BILL_COLOUR, UNHOOKED_FAMILY: UNHOOKED} if of == "family" else CAUSE_SHADES,
        stacked=True,
        most=1,
        legend="table",
        links=links,
    )


def stat(
    title: str,
    description: str,
    *queries: Target,
    unit: Unit,
    width: int = 4,
    thresholds: Sequence[Step] = (),
    mappings: Sequence[Json] = (),
    colours: Mapping[str, str] | None = None,
    decimals: int | None = None,
    graph: bool = False,
    background: bool = False,
    show: Literal["auto", "value", "value_and_name", "name"] = "auto",
    nothing: str = "–",
    links: Sequence[Link] = (),
    units: Mapping[str, Unit] | None = None,
    since: str = "",
) -> Panel:
    """Big numbers or words, one per series. ``nothing`` is shown if there is no series.

    ``units`` overrides the unit of single series, by name. ``since`` is the panel's own time range, such as ``now/d``.
    """
    return core.Stat(
        **common(title, description, queries, width, thresholds or PLAIN),
        format=unit,
        reduceCalc="lastNotNull",
        graphMode="area" if graph else "none",
        colorMode="background" if background else "value" if thresholds or mappings or colours else "none",
        color={"mode": "thresholds"},
        textMode=show,
        alignment="auto",
        mappings=list(mappings),
        noValue=nothing,
        decimals=decimals,
        overrides=_fixed_colours(colours or {})
        + [override(name, {"id": "unit", "value": one}) for name, one in (units or {}).items()],
        timeFrom=since or None,
        extraJson=more({"links": data_links(links)}),
    )


def bars(
    title: str,
    description: str,
    *queries: Target,
    unit: Unit,
    width: int = 8,
    thresholds: Sequence[Step] = (),
    colours: Mapping[str, str] | None = None,
    least: float | None = 0,
    most: float | None = None,
    decimals: int | None = None,
    links: Sequence[Link] = (),
    by_family: bool = False,
    nothing: str = "–",
) -> Panel:
    """One horizontal bar per series."""
    return Drawn(
        **common(title, description, queries, width, thresholds or ((None, BLUE),)),
        kind="bargauge",
        options={
            "displayMode": "basic",
            "orientation": "horizontal",
            "valueMode": "text",
            "showUnfilled": True,
            "minVizHeight": 10,
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        },
        defaults={
            "unit": unit,
            "min": least,
            "max": most,
            "decimals": decimals,
            "color": {"mode": "thresholds"},
            "noValue": nothing,
            "links": data_links(links),
        },
        overrides=_fixed_colours(colours or {}) + (_colours_by_ending(FAMILY_COLOUR) if by_family else []),
    )


def heat(
    title: str,
    description: str,
    *queries: Target,
    unit: Unit,
    width: int = 24,
    thresholds: Sequence[Step] = (),
    most: float | None = 1,
    links: Sequence[Link] = (),
    nothing: str = "",
) -> Panel:
    """One row per series with a cell per point in time, coloured by thresholds or else from dark to bright.

    The series must be recorded ones: there is at most one point per evaluation.
    """
    ramp = {} if thresholds else {"thresholdType": "percentage"}
    return Drawn(
        **common(title, description, queries, width, thresholds or RAMP)
        | {"maxDataPoints": CELLS, "interval": SETTINGS.interval}
        | ramp,
        kind="status-history",
        options={
            "rowHeight": 0.95,
            "colWidth": 1.0,
            "showValue": "never",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": bool(thresholds)},
            "tooltip": {"mode": "single", "sort": "none"},
        },
        defaults={
            "unit": unit,
            "min": 0,
            "max": most,
            "color": {"mode": "thresholds"},
            "links": data_links(links),
            "noValue": nothing,
        },
        custom={"fillOpacity": 100, "lineWidth": 0},
    )


def timeline(
    title: str,
    description: str,
    *queries: Target,
    mappings: Sequence[Json],
    width: int = 24,
    links: Sequence[Link] = (),
    nothing: str = "",
    legend: bool = True,
) -> Panel:
    """One row per series over time. ``mappings`` turn its values into words and colours."""
    return core.StateTimeline(
        **common(title, description, queries, width, ((None, FAINT),)) | {"maxDataPoints": STATES},
        mappings=list(mappings),
        fillOpacity=100,
        tooltipMode="single",
        extraJson=more(
            {"unit": "none", "links": data_links(links), "custom": {"spanNulls": False}, "noValue": nothing},
            options={"legend": {"showLegend": legend}},
        ),
    )


@attr.s
class Drawn(core.Panel):  # pyright: ignore
    """A panel of a kind that grafanalib lacks, or that it writes in the format of old versions of Grafana."""

    kind: str = attr.ib(default="")
    options: Json = attr.ib(factory=dict)
    defaults: Json = attr.ib(factory=dict)
    custom: Json = attr.ib(factory=dict)
    overrides: list[Json] = attr.ib(factory=list)

    def to_json_data(self) -> Json:
        return self.panel_json(
            {
                "type": self.kind,
                "options": self.options,
                "fieldConfig": {"defaults": {**self.defaults, "custom": self.custom}, "overrides": self.overrides},
            }
        )


def common(title: str, description: str, queries: Iterable[Target], width: int, thresholds: Sequence[Step]) -> Json:
    targets = list(queries)
    for letter, target in zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", targets, strict=False):
        target.refId = letter
    return {
        "title": title,
        "description": " ".join(description.split()),
        "targets": targets,
        "gridPos": _width(width),
        "thresholds": threshold_steps(thresholds),
        "maxDataPoints": None,
    }


def _width(width: int) -> object:
    return core.GridPos(h=0, w=width, x=0, y=0)


def more(defaults: Json, options: Json | None = None) -> Json:
    return {"fieldConfig": {"defaults": defaults}, **({"options": options} if options else {})}


def override(name: str, *properties: Json, matcher: Literal["byName", "byRegexp"] = "byName") -> Json:
    """``name``: of a series or a column, or a regular expression between slashes."""
    if name.startswith("/") and name.endswith("/"):
        matcher = "byRegexp"
    return {"matcher": {"id": matcher, "options": name}, "properties": list(properties)}


def _fixed_colours(colours: Mapping[str, str]) -> list[Json]:
    return [override(name, _fixed(colour)) for name, colour in colours.items()]


def _colours_by_ending(colours: Mapping[str, str]) -> list[Json]:
    return [override(f"/ {name}$/", _fixed(colour)) for name, colour in colours.items()]


def _fixed(colour: str) -> Json:
    return {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}


def _plain() -> Json:
    return {"id": "custom.fillOpacity", "value": 0}
