"""How the panels of this dashboard select: everything that one node's agent says.

The agent's counters carry no node of their own, only the address they were scraped from. A hidden variable holds it, so
that a query touches one node's series, however many nodes there are. It holds all addresses of the node's agent in
the time range: one that is gone has nothing to say of now, and what it said of then stays.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...agent.metrics import METRIC
from ...alerts.recording.names import INSTANCE_NODE
from .. import variables as v
from ..vocabulary import Target, Template, query

HERE = f"{v.CLUSTER}, {v.any_of('instance')}"
HIDDEN = 2  # as Grafana numbers it


def node() -> Template:
    """Exactly one node, with ranks or without, as its agent or its ranks name it."""
    return v.node(INSTANCE_NODE)


def instance() -> Template:
    """Where the agent of the chosen node was scraped."""
    found = v.nodes(INSTANCE_NODE, v.NODE)
    found.name, found.label, found.hide, found.allValue = "instance", "Agent", HIDDEN, None
    found.query = f"label_values({INSTANCE_NODE}{{{v.NODE}}}, instance)"
    return found


def series(metric: str, matchers: str = "") -> str:
    """The node's series of a declared metric; KeyError for any other."""
    return f"{METRIC[metric].name}{{{', '.join(filter(None, (HERE, matchers)))}}}"


def rate(metric: str, matchers: str = "") -> str:
    """Growth per second of a counter; KeyError or ValueError for anything else."""
    if METRIC[metric].type != "counter":
        raise ValueError(f"{metric} is no counter")
    return f"rate({series(metric, matchers)}[$__rate_interval])"


def total(by: str, expr: str) -> str:
    return f"sum by ({by}) ({expr})"


def grows(metric: str, by: str, legend: str, matchers: str = "") -> Target:
    """A counter's growth per second, summed by labels."""
    return query(total(by, rate(metric, matchers)), legend)


def mean(by: str, spent: str, count: str, matchers: str = "") -> str:
    """What one of ``count`` took on average; nothing where there was none."""
    return f"{total(by, rate(spent, matchers))} / ({total(by, rate(count, matchers))} > 0)"


def level(metric: str, by: str, legend: str, matchers: str = "") -> Target:
    """A gauge, by labels."""
    return query(f"max by ({by}) ({series(metric, matchers)})", legend)


def each(counters: Mapping[str, str], by: str = "instance", named: str = "") -> list[Target]:
    """The growth of several counters, summed by labels: metric -> what the legend calls it, after ``named``."""
    return [grows(metric, by, " ".join(filter(None, (named, word)))) for metric, word in counters.items()]


def levels(gauges: Mapping[str, str], by: str = "instance", named: str = "") -> list[Target]:
    """Several gauges, by labels: metric -> what the legend calls it, after ``named``."""
    return [level(metric, by, " ".join(filter(None, (named, word)))) for metric, word in gauges.items()]
