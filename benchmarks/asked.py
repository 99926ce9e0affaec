"""What the dashboards ask, with their variables filled in as Grafana would: one run, one node, all clusters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from synthetic import Fleet

from whyidle.dashboards.output import panels_of, rendered

POINTS = 1_000  # pixels of a panel: Grafana asks for no more points
VARIABLE = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$([a-z_]\w*)")
LABEL_VALUES = re.compile(r"label_values\((.*), *(\w+)\)$")
Json = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """One query of a panel; ``label`` is set where a variable asks for the values of a label instead."""

    dashboard: str
    panel: str
    expr: str
    instant: bool
    chosen: Mapping[str, str] = field(hash=False)
    points: int = POINTS
    label: str = ""

    def step(self, seconds: int, scrape: int) -> int:
        """Seconds between points, a multiple of the scrape interval."""
        return max(1, -(-seconds // (self.points * scrape))) * scrape

    def filled(self, seconds: int, scrape: int) -> str:
        step = self.step(seconds, scrape)
        known = {
            "__range": f"{seconds}s",
            "__range_s": str(seconds),
            "__interval": f"{step}s",
            "__rate_interval": f"{max(step + scrape, 4 * scrape)}s",
            **self.chosen,
        }
        return VARIABLE.sub(lambda found: known[found[1] or found[2]], self.expr)


def questions(fleet: Fleet) -> list[Question]:
    """Every query of every panel and variable of every dashboard."""
    return [question for dashboard in rendered().values() for question in _of(dashboard, fleet)]


def _of(dashboard: Json, fleet: Fleet) -> Iterator[Question]:
    uid = dashboard["uid"]
    chosen = {variable["name"]: _value(variable, fleet) for variable in dashboard["templating"]["list"]}
    for variable in dashboard["templating"]["list"]:
        asked = LABEL_VALUES.match(variable.get("definition", ""))
        if asked:
            yield Question(uid, f"variable {variable['name']}", asked[1], False, chosen, label=asked[2])
    for panel in panels_of(dashboard):
        for target in panel.get("targets", ()):
            points = min(POINTS, panel.get("maxDataPoints") or POINTS)
            yield Question(uid, panel["title"], target["expr"], target["instant"], chosen, points)


def _value(variable: Json, fleet: Fleet) -> str:
    first = {"run": fleet.run(0), "node": fleet.node(0), "instance": re.escape(fleet.instance(0)).replace("\\", "\\\\")}
    if variable["includeAll"]:
        return variable["allValue"]
    return first.get(variable["name"]) or str(variable["current"].get("value", ""))
