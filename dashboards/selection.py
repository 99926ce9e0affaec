"""Queries for the panels of one node: everything that its agent exports.

The agent's counters have no label for the node, only the address that was scraped (`instance`). A hidden variable holds
this address, so that a query reads the series of one node only. It holds all addresses that the node's agent had in the
time range: an old address has no current series, but its past ones are still shown.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..agent.metrics import METRIC
from ..alerts.recording.names import INSTANCE_NODE
from . import variables as v
from .vocabulary import Target, Template, now, over_range, query, worst

HERE = f"{v.CLUSTER}, {v.any_of('instance')}"
SAMPLED = 'source="gpm"'
"""Matcher for the seconds in which the counters were read that only Hopper and later GPUs have."""
CGROUP = 20
"""The most characters of a control group's name in a legend."""
ROWS = 64
"""The most rows of a table. Nodes usually have fewer ranks, ports or mounts."""


def node() -> Template:
    """A variable for exactly one node, with or without ranks."""
    return v.node(INSTANCE_NODE)


def instance() -> Template:
    """A hidden variable: the addresses of the chosen node's agent."""
    return v.instances(INSTANCE_NODE, v.NODE)


def series(metric: str, matchers: str = "") -> str:
    """The selector of a declared metric of the node. Raises KeyError for any other metric."""
    return f"{METRIC[metric].name}{{{', '.join(filter(None, (HERE, matchers)))}}}"


def rate(metric: str, matchers: str = "") -> str:
    """The rate of a counter of the node. Raises KeyError or ValueError for anything else."""
    if METRIC[metric].type != "counter":
        raise ValueError(f"{metric} is no counter")
    return f"rate({series(metric, matchers)}[$__rate_interval])"


def total(by: str, expr: str) -> str:
    return f"sum by ({by}) ({expr})"


def highest(expr: str, by: str, most: int, above: str = "") -> str:
    """The ``most`` series of ``expr`` with the highest mean over the time range. ``expr`` must have the labels ``by``.

    A legend has room for about ten names, and a node may have hundreds of ranks, disks and interfaces. Series whose
    mean is not above ``above`` are left out.
    """
    score = over_range(expr)
    return worst(f"({expr})", f"{score} > {above}" if above else score, by, str(most))


def shortened(expr: str) -> str:
    """Cuts long names of control groups to their last characters: a legend has no room for the whole path."""
    return f'label_replace({expr}, "cgroup", "…$1", "cgroup", ".*(.{{{CGROUP}}})")'


def grows(metric: str, by: str, legend: str, matchers: str = "", most: int = 0) -> Target:
    """The rate of a counter, summed by labels. ``most`` limits the number of series."""
    return _drawn(total(by, rate(metric, matchers)), by, legend, most)


def level(metric: str, by: str, legend: str, matchers: str = "", most: int = 0) -> Target:
    """A gauge, by labels. ``most`` limits the number of series."""
    return _drawn(f"max by ({by}) ({series(metric, matchers)})", by, legend, most)


def average(spent: str, count: str, by: str, legend: str, matchers: str = "", most: int = 0) -> Target:
    """A query for :func:`mean`. ``most`` limits the number of series."""
    return _drawn(mean(by, spent, count, matchers), by, legend, most)


def activity(metric: str, by: str, observed: str = "") -> str:
    """A counter of GPU activity, as a share of the time in which it was observed."""
    return f"{total(by, rate(metric))} / ({total(by, rate('whyidle_gpu_observed_seconds_total', observed))} > 0)"


def _drawn(expr: str, by: str, legend: str, most: int) -> Target:
    return query(highest(expr, by, most) if most else expr, legend)


def mean(by: str, spent: str, count: str, matchers: str = "") -> str:
    """The mean of ``spent`` per ``count``, by labels. Absent where ``count`` did not grow."""
    return f"{total(by, rate(spent, matchers))} / ({total(by, rate(count, matchers))} > 0)"


def each(counters: Mapping[str, str], by: str = "instance", named: str = "", most: int = 0) -> list[Target]:
    """The rates of several counters, summed by labels. ``counters``: metric -> its legend, which follows ``named``."""
    return [grows(metric, by, _named(named, word), most=most) for metric, word in counters.items()]


def levels(gauges: Mapping[str, str], by: str = "instance", named: str = "", most: int = 0) -> list[Target]:
    """Several gauges, by labels. ``gauges``: metric -> its legend, which follows ``named``."""
    return [level(metric, by, _named(named, word), most=most) for metric, word in gauges.items()]


def _named(named: str, word: str) -> str:
    return " ".join(filter(None, (named, word)))


def listed(expr: str, most: int = ROWS) -> Target:
    """A query for the rows of a table, at the end of the time range, with at most ``most`` rows."""
    return now(f"topk({most}, {expr})")
