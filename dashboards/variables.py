"""The variables on top of every dashboard, and the matchers that queries take from them.

The variables list what recorded series of the chosen time range have, so that runs that ended in it still show.
"""

from __future__ import annotations

from ..alerts.config import DEFAULT
from ..alerts.tokens import tokenised
from .library import Template, core

DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SETTINGS = tokenised(DEFAULT)
"""The settings, each as a token that the output pass replaces by its value."""
CLUSTER_LABEL = SETTINGS.cluster_label
BY_RUN = f"{CLUSTER_LABEL}, owner, run"
BY_NODE = f"{CLUSTER_LABEL}, node"
"""Labels that name one run, and one node, wherever it is."""
_HIDDEN = 2  # as Grafana numbers it


def any_of(label: str, variable: str = "") -> str:
    """A matcher for a variable of which any number of values may be chosen. Grafana escapes each for a regular
    expression, and Prometheus takes what stands between backquotes as it is."""
    return f"{label}=~`${{{variable or label}:regex}}`"


def only(label: str, variable: str = "") -> str:
    """A matcher for a variable that has exactly one value, whatever its characters: JSON's quotes and escapes are
    Prometheus's too."""
    return f"{label}=${{{variable or label}:json}}"


CLUSTER = any_of(CLUSTER_LABEL, "cluster")
OWNERS = f"{CLUSTER}, {any_of('owner')}"
RUNS = f"{OWNERS}, {any_of('run')}"
OWNER = f"{CLUSTER}, {only('owner')}"
RUN = f"{OWNER}, {only('run')}"
NODES = f"{CLUSTER}, {any_of('node')}"
NODE = f"{CLUSTER}, {only('node')}"
RUN_NODES = f"{RUN}, {any_of('node')}"
RANKS = any_of("rank")
"""Matchers for the inside of a selector: ``metric{RUN}``."""

ANY = ".*"
"""What All stands for: a label that nobody sets, as is cluster's right, matches too."""


def data_source() -> Template:
    return core.Template(name="datasource", label="Data source", type="datasource", query="prometheus")


def cluster() -> Template:
    return _listed("cluster", "Cluster", f"label_values(run:whyidle_ranks:count, {CLUSTER_LABEL})", multi=True)


def owners() -> Template:
    """Any number of owners of runs, all unless some are chosen."""
    return _listed("owner", "Owner", f"label_values(run:whyidle_ranks:count{{{CLUSTER}}}, owner)", multi=True)


def owner() -> Template:
    """Exactly one owner: two owners' runs of one name are two runs."""
    return _listed("owner", "Owner", f"label_values(run:whyidle_ranks:count{{{CLUSTER}}}, owner)", multi=False)


def runs() -> Template:
    """Any number of runs, all unless some are chosen."""
    return _listed("run", "Run", f"label_values(run:whyidle_ranks:count{{{OWNERS}}}, run)", multi=True)


def run() -> Template:
    """Exactly one run."""
    return _listed("run", "Run", f"label_values(run:whyidle_ranks:count{{{OWNER}}}, run)", multi=False)


def nodes(metric: str = "node:whyidle_ranks:count", matchers: str = CLUSTER) -> Template:
    """Any number of nodes, all unless some are chosen; those that have ``metric``."""
    return _listed("node", "Node", f"label_values({metric}{{{matchers}}}, node)", multi=True)


def node(metric: str = "node:whyidle_ranks:count") -> Template:
    """Exactly one node."""
    return _listed("node", "Node", f"label_values({metric}{{{CLUSTER}}}, node)", multi=False)


def instances(metric: str, matchers: str) -> Template:
    """Where the agents of the chosen nodes were scraped: hidden, as nobody chooses it."""
    found = nodes(metric, matchers)
    found.name, found.label, found.hide, found.allValue = "instance", "Agent", _HIDDEN, None
    found.query = f"label_values({metric}{{{matchers}}}, instance)"
    return found


def ranks() -> Template:
    """Any number of ranks of the chosen run, all unless some are chosen."""
    query = f"label_values(rank_instance_node:whyidle_rank:group{{{RUN_NODES}}}, rank)"
    template = _listed("rank", "Rank", query, multi=True)
    template.sort = core.SORT_NUMERIC_ASC
    return template


def window() -> Template:
    """What rates and shares are taken over: a part of the names of recorded series, ``...:ratio${window}``."""
    return choice("window", "Averaged over", DEFAULT.windows, DEFAULT.window)


def choice(name: str, label: str, values: tuple[str, ...], default: str) -> Template:
    """One of some fixed values."""
    options = [{"selected": value == default, "text": value, "value": value} for value in values]
    return core.Template(
        name=name, label=label, type="custom", query=",".join(values), options=options, default=default
    )


def _listed(name: str, label: str, query: str, *, multi: bool) -> Template:
    return core.Template(
        name=name,
        label=label,
        query=query,
        dataSource=DATA_SOURCE,
        multi=multi,
        includeAll=multi,
        allValue=ANY if multi else None,
        default="All" if multi else None,
        refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
        sort=core.SORT_ALPHA_IGNORE_CASE_ASC,
    )
