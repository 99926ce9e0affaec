"""How the panels of one node select: everything that its agent says.

The agent's counters carry no node of their own, only the address they were scraped from. A hidden variable holds it, so
that a query touches one node's series, however many nodes there are. It holds all addresses of the node's agent in
the time range: one that is gone has nothing to say of now, and what it said of then stays.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..agent.metrics import METRIC
from ..alerts.recording.names import INSTANCE_NODE
from . import variables as v
from .vocabulary import Target, Template, now, over_range, query, worst

HERE = f"{v.CLUSTER}, {v.any_of('instance')}"
SAMPLED = 'source="gpm"'
"""The seconds in which the counters that only Hopper and later GPUs have were read."""
CGROUP = 20
"""Characters of a control group's name in a legend."""
ROWS = 64
"""Of a table: more than a node has ranks, ports or mounts, as a rule."""


def node() -> Template:
    """Exactly one node, with ranks or without, as its agent or its ranks name it."""
    return v.node(INSTANCE_NODE)


def instance() -> Template:
    """Where the agent of the chosen node was scraped."""
    return v.instances(INSTANCE_NODE, v.NODE)


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


def highest(expr: str, by: str, most: int, above: str = "") -> str:
    """The ``most`` series of ``expr``, which has the labels ``by``, that are highest over the time range.

    A legend has room for some ten names, and a node may have hundreds of ranks, disks and interfaces. Those that were
    never higher than ``above`` are left out.
    """
    score = over_range(expr)
    return worst(f"({expr})", f"{score} > {above}" if above else score, by, str(most))


def shortened(expr: str) -> str:
    """The same with the last part of long names of control groups: a legend has no room for the whole path."""
    return f'label_replace({expr}, "cgroup", "…$1", "cgroup", ".*(.{{{CGROUP}}})")'


def grows(metric: str, by: str, legend: str, matchers: str = "", most: int = 0) -> Target:
    """A counter's growth per second, summed by labels; ``most`` bounds the number of series."""
    return _drawn(total(by, rate(metric, matchers)), by, legend, most)


def level(metric: str, by: str, legend: str, matchers: str = "", most: int = 0) -> Target:
    """A gauge, by labels; ``most`` bounds the number of series."""
    return _drawn(f"max by ({by}) ({series(metric, matchers)})", by, legend, most)


def average(spent: str, count: str, by: str, legend: str, matchers: str = "", most: int = 0) -> Target:
    """What one of ``count`` took on average; nothing where there was none."""
    return _drawn(mean(by, spent, count, matchers), by, legend, most)


def activity(metric: str, by: str, observed: str = "") -> str:
    """A counter of GPUs' activity, as a share of the time in which it was observed."""
    return f"{total(by, rate(metric))} / ({total(by, rate('whyidle_gpu_observed_seconds_total', observed))} > 0)"


def _drawn(expr: str, by: str, legend: str, most: int) -> Target:
    return query(highest(expr, by, most) if most else expr, legend)


def mean(by: str, spent: str, count: str, matchers: str = "") -> str:
    """What one of ``count`` took on average; nothing where there was none."""
    return f"{total(by, rate(spent, matchers))} / ({total(by, rate(count, matchers))} > 0)"


def each(counters: Mapping[str, str], by: str = "instance", named: str = "", most: int = 0) -> list[Target]:
    """The growth of several counters, summed by labels: metric -> what the legend calls it, after ``named``."""
    return [grows(metric, by, _named(named, word), most=most) for metric, word in counters.items()]


def levels(gauges: Mapping[str, str], by: str = "instance", named: str = "", most: int = 0) -> list[Target]:
    """Several gauges, by labels: metric -> what the legend calls it, after ``named``."""
    return [level(metric, by, _named(named, word), most=most) for metric, word in gauges.items()]


def _named(named: str, word: str) -> str:
    return " ".join(filter(None, (named, word)))


def listed(expr: str, most: int = ROWS) -> Target:
    """The rows of a table, at the end of the time range."""
    return now(f"topk({most}, {expr})")
