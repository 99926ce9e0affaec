"""The functions and types that dashboards are written with. They hide grafanalib.

A dashboard is a function ``build() -> Dashboard`` in its own module, listed in :mod:`.output`::

    from . import variables as v
    from .vocabulary import Column, Dashboard, dashboard, line, query, section, share, stat, table, to_run, trend

    def build() -> Dashboard:
        return dashboard(
            "whyidle-node", "whyidle / Node", "What the node's own counters say about it.",
            variables=[v.data_source(), v.cluster(), v.node(), v.window()],
            sections=[
                section("In one look", line(4, _ranks(), _goodput()), line(8, _shares())),
                section("Network", line(8, _nodes()), collapsed=True),
            ],
        )

    def _nodes() -> Panel:
        return trend(
            "Goodput of nodes", "What it tells, and when to worry.",
            query(f"node:whyidle_goodput:ratio${{window}}{{{v.NODE}}}", "{{node}}"),
            unit="percentunit", width=12,
        )

- A dashboard is 24 columns wide. The panels of a line have the line's height and wrap after 24 columns.
- ``query(expr, legend)`` queries the time range, ``now(expr, legend)`` its end: for stats, bars and tables.
- Panels: :func:`trend` (lines), :func:`share` (families or causes stacked to 100 %), :func:`stat`, :func:`bars`
  (one bar per series), :func:`table`, :func:`heat` (one row of coloured cells per series), :func:`timeline` (one row of
  words per series; :func:`words` maps numbers to words).
- Every panel has a title, a description (what it shows; what it means when it grows) and a unit of ``Unit``.
- Thresholds: ``steps(0.1, 0.3)`` is green, amber from 0.1 on, red from 0.3 on; ``falling(0.5, 0.8)`` is for values
  that should be high. Use them only for values that are good or bad by themselves. ``dashed=True`` on a trend draws
  them as lines.
- ``encode(metric, matchers, label, values, by)`` turns the values of a label into one number per series, for
  :func:`timeline`.
- Device-hours over the chosen range: ``device_hours("run_family:whyidle_billed_seconds:increase{...}")``.
- Colours follow the name of a series: ``colours=FAMILY_COLOUR`` with the legend ``{{family}}``, or ``by_family=True``
  with a legend that ends in ``{{family}}``.
- Families are stacked in one order, compute lowest. :func:`share` does this; elsewhere use ``in_order(expr)``.
- ``nothing="..."`` is shown if there are no series. It should say what that means.
- The output pass adds ids, data source, tag and links, and removes obsolete fields. Do not set them.
- A panel has at most 64 series: ``worst(selector, score, "owner, run, rank")`` keeps those with the highest score.
"""

from __future__ import annotations

from .layout import Annotation, Line, Section, dashboard, line, section
from .library import Dashboard, Panel, Target, Template
from .panels import bars, heat, share, stat, timeline, trend
from .queries import (
    blamed,
    by_length,
    confirmed,
    device_hours,
    encode,
    gpu_hours,
    in_order,
    largest,
    now,
    over_range,
    query,
    rank_idle,
    rank_shares,
    unused_hours,
    used_hours,
    worst,
)
from .tables import Column, table
from .values import (
    FAMILY,
    FAMILY_WIDTH,
    GOOD,
    LATE_BY,
    MONEY,
    Link,
    Step,
    Unit,
    falling,
    series_to,
    steps,
    to_node,
    to_run,
    words,
)

__all__ = [
    "FAMILY",
    "FAMILY_WIDTH",
    "GOOD",
    "LATE_BY",
    "MONEY",
    "Annotation",
    "Column",
    "Dashboard",
    "Line",
    "Link",
    "Panel",
    "Section",
    "Step",
    "Target",
    "Template",
    "Unit",
    "bars",
    "blamed",
    "by_length",
    "confirmed",
    "dashboard",
    "device_hours",
    "encode",
    "falling",
    "gpu_hours",
    "heat",
    "in_order",
    "largest",
    "line",
    "now",
    "over_range",
    "query",
    "rank_idle",
    "rank_shares",
    "section",
    "series_to",
    "share",
    "stat",
    "steps",
    "table",
    "timeline",
    "to_node",
    "to_run",
    "trend",
    "unused_hours",
    "used_hours",
    "words",
    "worst",
]
