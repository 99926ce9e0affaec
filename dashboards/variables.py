"""The variables at the top of every dashboard, and the matchers that queries make from them.

The variables list the label values of recorded series in the chosen time range, so runs that ended in it are listed.
"""

from __future__ import annotations

from ..alerts.config import DEFAULT
from ..alerts.tokens import tokenised
from .library import Template, core

DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SETTINGS = tokenised(DEFAULT)
"""The settings, each as a token. The output pass replaces tokens by values."""
CLUSTER_LABEL = SETTINGS.cluster_label
BY_RUN = f"{CLUSTER_LABEL}, owner, run"
BY_NODE = f"{CLUSTER_LABEL}, node"
"""Labels that identify a run and a node across clusters."""
_HIDDEN = 2  # Grafana's number for a hidden variable


def any_of(label: str, variable: str = "") -> str:
    """A matcher for a variable with any number of chosen values.

    Grafana escapes each value for a regular expression, and Prometheus takes text between backquotes literally.
    """
    return f"{label}=~`${{{variable or label}:regex}}`"


def only(label: str, variable: str = "") -> str:
    """A matcher for a variable with exactly one value.

    The value may have any characters: Prometheus reads the quotes and escapes of JSON.
    """
    return f"{label}=${{{variable or label}:json}}"


CLUSTER = any_of(CLUSTER_LABEL, "cluster")
OWNERS = f"{CLUSTER}, {any_of('owner')}"
RUNS = f"{OWNERS}, {any_of('run')}"
OWNER = f"{CLUSTER}, {only('owner')}"
RUN = f"{OWNER}, {only('run')}"
NODES = f"{CLUSTER}, {any_of('node')}"
NODE = f"{CLUSTER}, {only('node')}"
RUN_NODES = f"{RUN}, {any_of('node')}"
MEMBERS = f"{CLUSTER}, {any_of('node', 'member')}"
"""For series of nodes without a label for the run. With `NODES`, a query would read those of all nodes."""
RANKS = any_of("rank")
"""Matchers for use in a selector: ``metric{RUN}``."""

EXACT_SECONDS = 86_400
"""The longest time range in which the worst series are found by their increases. In a longer one, sums of hours find
them."""
ANY = ".*"
"""The value of All. It also matches series without the label, since series may lack the label for the cluster."""


def data_source() -> Template:
    return core.Template(name="datasource", label="Data source", type="datasource", query="prometheus")


def cluster() -> Template:
    return listed("cluster", "Cluster", f"label_values(run:whyidle_ranks:count, {CLUSTER_LABEL})", multi=True)


def owners() -> Template:
    """A variable for any number of owners. All if none is chosen."""
    return listed("owner", "Owner", f"label_values(run:whyidle_ranks:count{{{CLUSTER}}}, owner)", multi=True)


def owner() -> Template:
    """A variable for exactly one owner: runs of two owners with the same name are two runs."""
    return listed("owner", "Owner", f"label_values(run:whyidle_ranks:count{{{CLUSTER}}}, owner)", multi=False)


def runs() -> Template:
    """A variable for any number of runs. All if none is chosen."""
    return listed("run", "Run", f"label_values(run:whyidle_ranks:count{{{OWNERS}}}, run)", multi=True)


def run() -> Template:
    """A variable for exactly one run."""
    return listed("run", "Run", f"label_values(run:whyidle_ranks:count{{{OWNER}}}, run)", multi=False)


def nodes(metric: str = "node:whyidle_ranks:count", matchers: str = CLUSTER) -> Template:
    """A variable for any number of the nodes that have ``metric``. All if none is chosen."""
    return listed("node", "Node", f"label_values({metric}{{{matchers}}}, node)", multi=True)


def node(metric: str = "node:whyidle_ranks:count") -> Template:
    """A variable for exactly one node."""
    return listed("node", "Node", f"label_values({metric}{{{CLUSTER}}}, node)", multi=False)


def instances(metric: str, matchers: str) -> Template:
    """A hidden variable: the addresses of the agents of the chosen nodes."""
    return _hidden("instance", "Agent", f"label_values({metric}{{{matchers}}}, instance)")


def members() -> Template:
    """A hidden variable: those of the chosen nodes on which the chosen run has had ranks."""
    return _hidden("member", "Node of the run", f"label_values(run_node:whyidle_ranks:count{{{RUN_NODES}}}, node)")


def gpus() -> Template:
    """A hidden variable: the GPUs that the ranks of the chosen run use on the chosen nodes."""
    return _hidden("uuid", "GPU", f"label_values(whyidle_rank_info{{{RUN_NODES}}}, uuid)")


def ranks() -> Template:
    """A variable for any number of ranks of the chosen run. All if none is chosen."""
    query = f"label_values(rank_instance_node:whyidle_rank:group{{{RUN_NODES}}}, rank)"
    template = listed("rank", "Rank", query, multi=True)
    template.sort = core.SORT_NUMERIC_ASC
    return template


def window() -> Template:
    """A variable for the window of rates and shares. Names of recorded series contain it: ``:ratio${window}``."""
    return choice("window", "Averaged over", DEFAULT.windows, DEFAULT.window)


def choice(name: str, label: str, values: tuple[str, ...], default: str) -> Template:
    """A variable with fixed values."""
    options = [{"selected": value == default, "text": value, "value": value} for value in values]
    return core.Template(
        name=name, label=label, type="custom", query=",".join(values), options=options, default=default
    )


def exact() -> Template:
    """A hidden variable: the seconds of the time range, but at most EXACT_SECONDS. Durations cannot be calculated."""
    query = f"query_result(clamp_max(vector($__range_s), {EXACT_SECONDS}))"
    found = listed("exact", "Seconds in which the worst are found exactly", query, multi=False)
    found.hide, found.regex = _HIDDEN, r"/^\{\} (\d+) /"
    return found


def worst(name: str, label: str, expr: str, text: str) -> Template:
    """A hidden variable: the values of ``label`` of the series that ``expr`` finds, so that panels read only those.

    ``text`` is the label of the variable. The pattern reads the label from Grafana's text of a result:
    ``{rank="7"} 1 1764000000000``.
    """
    found = _hidden(name, text, f"query_result(group by ({label}) ({' '.join(expr.split())}))")
    found.regex = rf'/^\{{{label}="(.*)"\}} \S+ \S+$/'
    return found


def _hidden(name: str, label: str, query: str) -> Template:
    """A variable that always has all values that its query finds."""
    found = listed(name, label, query, multi=True)
    found.hide, found.allValue = _HIDDEN, None
    return found


def listed(name: str, label: str, query: str, *, multi: bool) -> Template:
    """A variable for the values that a query finds: one of them, or with ``multi`` any number."""
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
