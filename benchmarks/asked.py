"""The queries of the dashboards, with variables filled in as Grafana does it, and how long the answers take."""

from __future__ import annotations

import http.client
import json
import re
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from servers import SCRAPE_SECONDS, Server
from synthetic import Fleet

from whyidle.alerts.promql import seconds as parsed
from whyidle.dashboards.output import panels_of, rendered

SLOWEST = 10
LONG_SECONDS = 1.0
POINTS = 1_000  # the width of a panel in pixels: Grafana requests no more points
VARIABLE = re.compile(r"\$\{(\w+)(?::(\w+))?\}|\$([a-z_]\w*)")
LABEL_VALUES = re.compile(r"label_values\((.*), *(\w+)\)$")
QUERY_RESULT = re.compile(r"query_result\((.*)\)$")
Json = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """One query of a panel. If ``label`` is set, a variable's query for the values of this label."""

    dashboard: str
    panel: str
    expr: str
    instant: bool
    chosen: dict[str, str] = field(hash=False)
    points: int = POINTS
    least: int = 1
    """The panel's least number of seconds between two points."""
    label: str = ""
    variable: str = ""
    """A variable that gets its values from the answer. ``pattern`` finds them."""
    pattern: str = ""

    def step(self, seconds: int, scrape: int) -> int:
        """Seconds between two points over a range of ``seconds``, a multiple of the scrape interval."""
        return max(1, -(-seconds // (self.points * scrape)), -(-self.least // scrape)) * scrape

    def filled(self, seconds: int, scrape: int) -> str:
        step = self.step(seconds, scrape)
        known = {
            "__range": f"{seconds}s",
            "__range_s": str(seconds),
            "__interval": f"{step}s",
            "__interval_ms": f"{step}000",
            "__rate_interval": f"{max(step + scrape, 4 * scrape)}s",
            **self.chosen,
        }

        def written(found: re.Match[str]) -> str:
            value = known[found[1] or found[3]]
            return json.dumps(value) if found[2] == "json" else value

        return VARIABLE.sub(written, self.expr)


def questions(fleet: Fleet) -> list[Question]:
    """Every query of all panels and variables of all dashboards, for one run, one node and all clusters."""
    return [question for dashboard in rendered().values() for question in _of(dashboard, fleet)]


def _of(dashboard: Json, fleet: Fleet) -> Iterator[Question]:
    uid = dashboard["uid"]
    chosen = {variable["name"]: _value(variable, fleet) for variable in dashboard["templating"]["list"]}
    for variable in dashboard["templating"]["list"]:
        asked = LABEL_VALUES.match(variable.get("definition", ""))
        if asked:
            yield Question(uid, f"variable {variable['name']}", asked[1], False, chosen, label=asked[2])
        asked = QUERY_RESULT.match(variable.get("definition", ""))
        if asked:
            name, pattern = variable["name"], variable["regex"].strip("/")
            yield Question(uid, f"variable {name}", asked[1], True, chosen, variable=name, pattern=pattern)
    for panel in panels_of(dashboard):
        for target in panel.get("targets", ()):
            points = min(POINTS, panel.get("maxDataPoints") or POINTS)
            least = parsed(panel["interval"]) if "interval" in panel else 1
            yield Question(uid, panel["title"], target["expr"], target["instant"], chosen, points, least)


def _value(variable: Json, fleet: Fleet) -> str:
    first = {
        "owner": fleet.owner(),
        "run": fleet.run(0),
        "node": fleet.node(0),
        "instance": re.escape(fleet.instance(0)),
    }
    if "allValue" in variable:
        return variable["allValue"]
    listed = {"uuid": fleet.gpus, "member": fleet.members}.get(variable["name"])
    if listed:
        return "|".join(listed(0))  # without characters that Grafana would escape
    return first.get(variable["name"]) or str(variable["current"].get("value", ""))


def ask(server: Server, asked: list[Question], end: float, seconds: int, rounds: int) -> dict[str, Any]:
    """Sends every query over the range up to ``end``, ``rounds`` times. Returns seconds by dashboard, and failures.

    Queries with an empty answer are listed too. ``cpu`` is the server's CPU time, which is about the time that it would
    take on a machine without other load.
    """
    walls: dict[Question, list[float]] = {}
    cpus: dict[Question, list[float]] = {}
    empty: set[str] = set()
    failed: dict[str, str] = {}
    for _ in range(rounds):
        for question in asked:
            query = question.filled(seconds, SCRAPE_SECONDS)
            cpu, began = server.cpu_seconds(), time.perf_counter()
            try:
                answer = _answer(server, question, query, end, seconds)
            except (OSError, http.client.HTTPException) as error:
                failed[query] = str(error)
                continue
            walls.setdefault(question, []).append(time.perf_counter() - began)
            cpus.setdefault(question, []).append(server.cpu_seconds() - cpu)
            data = json.loads(answer)["data"]
            if question.variable:
                question.chosen[question.variable] = _values(question, data["result"])
            if not (data if question.label else data["result"]):
                empty.add(f"{question.dashboard}: {question.panel}: {query}")
    slowest = sorted(walls, key=lambda question: -statistics.median(walls[question]))
    return {
        "of": {name: _spread(walls, name) for name in sorted({question.dashboard for question in asked})},
        "all": _spread(walls),
        "cpu": _spread(cpus),
        "slowest": [
            {"panel": f"{one.dashboard}: {one.panel}", "query": one.expr, "seconds": walls[one], "cpu": cpus[one]}
            for at, one in enumerate(slowest)
            if at < SLOWEST or max(walls[one]) > LONG_SECONDS
        ],
        "empty": sorted(empty),
        "failed": failed,
    }


def _values(question: Question, results: list[Json]) -> str:
    """The values of a variable, from the results as Grafana writes them."""
    found = []
    for one in results:
        labels = ",".join(f'{name}="{text}"' for name, text in one["metric"].items())
        time_, value = one["value"]
        found += re.findall(question.pattern, f"{{{labels}}} {value} {1000 * time_:.0f}")
    return "|".join(map(re.escape, found))


def _answer(server: Server, question: Question, query: str, end: float, seconds: int) -> bytes:
    if question.label:
        return server.values(question.label, query, end, seconds)
    step = question.step(seconds, SCRAPE_SECONDS)
    return server.ask(query, end, 0 if question.instant else seconds, step)


def _spread(took: Mapping[Question, list[float]], dashboard: str = "") -> dict[str, float]:
    ordered = sorted(one for question, of in took.items() for one in of if dashboard in ("", question.dashboard))
    if not ordered:
        return {"queries": 0}
    return {
        "queries": len(ordered),
        "p50": statistics.median(ordered),
        "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "max": ordered[-1],
    }
