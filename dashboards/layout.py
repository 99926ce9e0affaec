"""The parts of a dashboard: sections, lines of panels, and marks on the time axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import attr

from ..alerts.panels import panel_id
from .library import Dashboard, Panel, Template, core
from .queries import one_line
from .values import Json

COLUMNS = 24


@dataclass(frozen=True)
class Line:
    """Panels side by side, ``height`` units of 30 pixels high."""

    height: int
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Section:
    """Lines of panels under a heading. No heading if the title is empty."""

    title: str
    lines: tuple[Line, ...]
    collapsed: bool = False


@dataclass(frozen=True)
class Annotation:
    """Marks on the time axis where ``expr`` is above 0. ``title`` and ``text`` may contain labels: ``{{node}}``."""

    name: str
    expr: str
    title: str
    text: str
    colour: str
    shown: bool = True
    step: str = "60s"


def line(height: int, *panels: Panel) -> Line:
    return Line(height, panels)


def section(title: str, *lines: Line, collapsed: bool = False) -> Section:
    return Section(title, lines, collapsed)


def dashboard(
    uid: str,
    title: str,
    description: str,
    *,
    variables: Sequence[Template],
    sections: Sequence[Section],
    annotations: Sequence[Annotation] = (),
    start: str = "now-1h",
    refresh: str = "30s",
) -> Dashboard:
    """A dashboard with its panels in position. The output pass adds tag, links, data source and ids."""
    return core.Dashboard(
        uid=uid,
        title=title,
        description=" ".join(description.split()),
        templating=core.Templating(list=list(variables)),
        annotations=core.Annotations(list=[_annotation(entry) for entry in annotations]),
        panels=_place(sections),
        time=core.Time(start, "now"),
        refresh=refresh,
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        timezone="browser",
    )


def _place(sections: Sequence[Section]) -> list[Panel]:
    placed: list[Panel] = []
    y = 0
    for part in sections:
        if not part.title:
            panels, y = _place_lines(part.lines, y)
            placed.extend(panels)
            continue
        row = core.RowPanel(
            id=panel_id(f"row {part.title}"),
            title=part.title,
            gridPos=core.GridPos(h=1, w=COLUMNS, x=0, y=y),
            collapsed=part.collapsed,
        )
        placed.append(row)
        y += 1
        panels, end = _place_lines(part.lines, y)
        if part.collapsed:
            row.panels.extend(panels)
        else:
            placed.extend(panels)
            y = end
    return placed


def _place_lines(lines: Sequence[Line], y: int) -> tuple[list[Panel], int]:
    placed: list[Panel] = []
    for entry in lines:
        x = 0
        for panel in entry.panels:
            width = panel.gridPos.w
            if x + width > COLUMNS:
                x, y = 0, y + entry.height
            place = core.GridPos(h=entry.height, w=width, x=x, y=y)
            placed.append(attr.evolve(panel, id=panel_id(panel.title), gridPos=place))
            x += width
        y += entry.height
    return placed, y


def _annotation(entry: Annotation) -> Json:
    return {
        "name": entry.name,
        "enable": entry.shown,
        "iconColor": entry.colour,
        "expr": one_line(entry.expr),
        "titleFormat": entry.title,
        "textFormat": entry.text,
        "step": entry.step,
    }
