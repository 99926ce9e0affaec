"""The dashboard overview."""

from __future__ import annotations

from . import variables as v
from .vocabulary import Dashboard, dashboard, line, query, section, share


def build() -> Dashboard:
    expr = f"sum by (family) (run_family:whyidle_share:ratio${{window}}{{{v.RUN}}})"
    return dashboard(
        "whyidle-overview",
        "whyidle / overview",
        "soon",
        variables=[v.data_source(), v.cluster(), v.runs(), v.window()],
        sections=[section("In one look", line(8, share("Shares", "Of time.", query(expr, "{{family}}"))))],
    )
