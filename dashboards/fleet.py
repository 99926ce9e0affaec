"""The dashboard Fleet: what is lost, what it costs and where to look, for thousands of GPUs on one screen.

It queries recorded series only.
"""

from __future__ import annotations

from ..agent.metrics.gpu import UNHOOKED_FAMILY
from ..alerts.config import DEFAULT
from ..alerts.promql import seconds
from ..alerts.recording.names import EVIDENCE_BY_NODE, LATE_BY_RANK, LOST_BY_NODE, UNUSED_NOW, hourly
from . import clusters, scaling
from . import variables as v
from .colours import BILL_COLOUR, FAMILY_COLOUR, INFERNO
from .vocabulary import (
    FAMILY,
    FAMILY_WIDTH,
    GOOD,
    LATE_BY,
    MONEY,
    Column,
    Dashboard,
    Panel,
    Template,
    bars,
    blamed,
    by_length,
    dashboard,
    device_hours,
    gpu_hours,
    heat,
    largest,
    line,
    now,
    over_range,
    query,
    section,
    series_to,
    share,
    stat,
    table,
    to_node,
    to_run,
    trend,
    unused_hours,
    used_hours,
    worst,
)

HOURS = "count:GPU-h"
BY_RANK = f"{v.BY_RUN}, rank"
LOST = f'family!~"compute|{UNHOOKED_FAMILY}"'
OF_CLUSTERS = "cluster_family"
OF_RANKS = f'family!="{UNHOOKED_FAMILY}"'
LOSING = f"{v.CLUSTER}, {v.any_of('node', 'losing')}"
"""The nodes that lost most, from a hidden variable."""
LOOKS = 60
"""The number of points of the time range at which scores are computed. With more, a day of a thousand nodes would be
slow."""
LOOKS_TAKEN = "($__range_s * 1000 / $__interval_ms)"
BANDS = (
    ("90 % and more", 0.9, 9, INFERNO[2]),
    ("75 to 90 %", 0.75, 0.9, INFERNO[4]),
    ("50 to 75 %", 0.5, 0.75, INFERNO[6]),
    ("25 to 50 %", 0.25, 0.5, INFERNO[8]),
    ("below 25 %", -1, 0.25, INFERNO[9]),
)
"""Bright means much loss, as in all heat maps. These are not the colours of families, since they do not name one."""
FAMILIES_OF_COUNTERS = {"network": "network", "storage": "storage", "cpu": "CPU"}
DEGRADED = 0.99
"""Nodes whose links carry less than this share of the best node's links are listed. A smaller difference is noise."""
COUNTS = ("10", "20", "50")


def build() -> Dashboard:
    return dashboard(
        "whyidle-fleet",
        "whyidle / Fleet",
        """All GPUs of all clusters: what was lost, to what, and what that cost; and the nodes, links and ranks that it
        was lost on.""",
        variables=[
            v.data_source(),
            v.cluster(),
            v.window(),
            v.choice("worst", "Worst", COUNTS, "20"),
            *scaling.variables(),
            v.exact(),
            _losing(),
            _late(),
        ],
        sections=[
            section(
                "What the fleet loses",
                line(4, *_in_one_look()),
                line(9, _blamed(), _hours()),
                line(9, _runs()),
                line(7, clusters.table_of_clusters(), clusters.goodput()),
            ),
            section("How well runs scale", line(8, scaling.efficiencies())),
            section(
                "Which nodes and ranks",
                line(8, _bands(), _signals()),
                line(12, _heat()),
                line(9, _nodes()),
                line(9, _troubled(), _late_ranks()),
            ),
        ],
        start="now-6h",
        refresh="1m",
    )


# -- what the fleet loses


def _in_one_look() -> list[Panel]:
    of_ranks = f"run:whyidle_device_seconds:rate$window{{{v.CLUSTER}}}"
    computing = f"sum({of_ranks} * on ({v.BY_RUN}) run:whyidle_goodput:ratio$window{{{v.CLUSTER}}})"
    idle = f"sum(cluster_family:whyidle_device_seconds:rate$window{{{v.CLUSTER}, {LOST}}})"
    unhooked = f'cluster_family:whyidle_device_seconds:rate$window{{{v.CLUSTER}, family="{UNHOOKED_FAMILY}"}}'
    return [
        stat(
            "GPUs in runs",
            "Live ranks of all runs; each has one device.",
            query(f"sum(run:whyidle_ranks:count{{{v.CLUSTER}}})"),
            unit="short",
            graph=True,
        ),
        stat(
            "Goodput",
            "Share of all ranks' device time that was compute or rollouts for new steps.",
            query(f"{computing} / sum({of_ranks})"),
            unit="percentunit",
            thresholds=GOOD,
            decimals=0,
            width=5,
            graph=True,
        ),
        stat(
            "Idle GPUs",
            "Device-seconds per second that are not compute, and GPUs that runs were given and do not use: how many "
            "GPUs are paid for and do no useful work.",
            query(f"{idle} + (sum({UNUSED_NOW}{{{v.CLUSTER}}}) or vector(0))"),
            unit="short",
            width=5,
            graph=True,
        ),
        stat(
            "Cost of idle GPUs",
            "The GPU-hours in the time range that were not compute or that no rank used, at the price in the settings.",
            now(f"{v.SETTINGS.gpu_hour_price} * sum({gpu_hours(v.CLUSTER, LOST, OF_CLUSTERS)}) > 0"),
            unit=MONEY,
            width=5,
            nothing="no price is set",
        ),
        stat(
            "GPUs without whyidle",
            "GPUs that no rank uses: GPUs of jobs without hooks, and GPUs without a job. whyidle does not know "
            "what they do.",
            query(f"sum({unhooked})"),
            unit="short",
            decimals=0,
            width=5,
            nothing="none",
        ),
    ]


def _blamed() -> Panel:
    return share(
        "What is to blame",
        "Shares of the time of all ranks without startup, with waits for late ranks counted under what made them "
        "late. A run counts in proportion to its ranks.",
        query(blamed(v.CLUSTER), "{{family}}"),
        width=16,
    )


def _hours() -> Panel:
    return bars(
        "GPU-hours lost, by family",
        "Device-hours in the time range, by family, with the waits for late ranks counted under what made those late. "
        "The longest bar is where an improvement saves most. The last bar is GPUs that runs did not use.",
        now(f"sort_desc(sum by (family) ({used_hours(v.CLUSTER, LOST, OF_CLUSTERS)}) > 0)", "{{family}}"),
        now(f"sum({unused_hours(v.CLUSTER)}) > 0", "given, and not used"),
        unit=HOURS,
        colours=BILL_COLOUR,
        nothing="nothing lost",
    )


def _runs() -> Panel:
    lost, used = (f"sum by ({v.BY_RUN}) ({gpu_hours(v.CLUSTER, families)})" for families in (LOST, OF_RANKS))
    first = f"topk($worst, {lost})"
    stood = over_range(f"sum by ({v.BY_RUN}, family) (run_family:whyidle_verdict:ratio5m{{{v.CLUSTER}}})", "count")
    panel = table(
        "Runs by what they lost",
        "The runs that lost most device-hours in the time range, including runs that have ended and GPUs that they did "
        "not use, and the verdict that each run had for most of the time.",
        now(first),
        now(f"{v.SETTINGS.gpu_hour_price} * ({first}) > 0"),
        now(f"{used} and on ({v.BY_RUN}) {first}"),
        now(f"topk by ({v.BY_RUN}) (1, {stood}) and on ({v.BY_RUN}) {first}"),
        columns=[
            Column("owner", "Owner"),
            Column("run", "Run", link=to_run()),
            Column("A", "GPU-hours lost", HOURS, cell="gauge"),
            Column("B", "Cost", MONEY),
            Column("C", "GPU-hours in all", HOURS),
            Column("family", "Lost most to", mappings=FAMILY, cell="color-background", width=FAMILY_WIDTH),
        ],
        sort="GPU-hours lost",
    )
    return _looking(panel)


# -- which nodes and ranks


def _computing(nodes: str) -> str:
    return f'node_family:whyidle_share:ratio5m{{{nodes}, family="compute"}}'


def _bands() -> Panel:
    panel = trend(
        "Nodes by how much they compute",
        "How many nodes spend which share of their ranks' time in compute. Bright means little compute. A band "
        "that fills at once is an event; a band that fills slowly is a gradual change.",
        *(
            query(f"count({_computing(v.CLUSTER)} >= {low} < {high}) or vector(0)", words_)
            for words_, low, high, _ in BANDS
        ),
        unit="short",
        stacked=True,
        colours={words_: colour for words_, _, _, colour in BANDS},
    )
    panel.maxDataPoints = 4 * LOOKS  # about one per recorded value, over a day
    return panel


def _heat() -> Panel:
    lost = f"sum by ({v.BY_NODE}) (sum_over_time({LOST_BY_NODE}{{{LOSING}}}[${{__range}}] @ end()))"
    return heat(
        "The worst nodes over time",
        "Share of the ranks' time that was not compute, by node. Bright means a large share. The rows are the "
        "nodes that lost most in the time range. One bright row is a node to drain. A bright column means that "
        "the whole fleet lost time at once. Click a cell to open the node.",
        query(f"1 - {worst(_computing(LOSING), lost, v.BY_NODE)}", "{{node}}"),
        unit="percentunit",
        links=[series_to("node")],
    )


def _losing() -> Template:
    """A hidden variable: the nodes that lost most. A panel that read all nodes to find them would read too much."""
    of_all = f"{{{v.CLUSTER}}}"
    lost = largest("$worst", v.BY_NODE, LOST_BY_NODE + of_all, hourly(LOST_BY_NODE) + of_all)
    return v.worst("losing", "node", lost, "Node that lost most")


def _late() -> Template:
    """A hidden variable: the ranks, of any run, that made others wait most."""
    of_all = f"{{{v.CLUSTER}}}"
    late = largest("$worst", BY_RANK, LATE_BY_RANK + of_all, hourly(LATE_BY_RANK) + of_all)
    return v.worst("late", "rank", late, "Rank that made others wait")


def _nodes() -> Panel:
    hours = device_hours(f"{LOST_BY_NODE}{{{LOSING}}}")
    first = f"topk($worst, sum by ({v.BY_NODE}) ({hours}))"
    spent = f"sum_over_time(run_node_cause:whyidle_device_seconds:increase{{{LOSING}"
    worst = f"topk by ({v.BY_NODE}) (1, sum by ({v.BY_NODE}, family) ({spent}, {LOST}}}[1h])))"
    family = f"({worst} / on ({v.BY_NODE}) group_left () sum by ({v.BY_NODE}) ({spent}, {OF_RANKS}}}[1h])))"
    panel = table(
        "Nodes by what they lost",
        "The nodes whose ranks lost most device-hours in the time range, and the family that each lost most to "
        "in the last hour of it. The hours are parts of the bill of the runs. In the column for the last "
        "hour, waits for a late rank count as straggler.",
        now(first),
        now(f"max by ({v.BY_NODE}) (node:whyidle_ranks:count{{{LOSING}}}) and on ({v.BY_NODE}) {first}"),
        now(f"{family} and on ({v.BY_NODE}) {first}"),
        columns=[
            Column("node", "Node", link=to_node()),
            Column("A", "GPU-hours lost", HOURS, cell="gauge"),
            Column("B", "Ranks", "short", width=90),
            Column("family", "Lost most to", mappings=FAMILY, cell="color-background", width=FAMILY_WIDTH),
            Column("C", "Share in the last hour", "percentunit", decimals=0, width=180),
        ],
        sort="GPU-hours lost",
    )
    return _looking(panel)


def _signals() -> Panel:
    evidence = f"node:whyidle_%s_evidence:max5m{{{v.CLUSTER}}}"
    panel = trend(
        "Nodes whose counters show a limit",
        "How many nodes have a signal of network, storage or CPU at each moment. If many nodes show one at the "
        "same time, look at what they share, such as a switch or a file server.",
        *(
            query(f"count(group by ({v.BY_NODE}) ({evidence % family}))", words_)
            for family, words_ in FAMILIES_OF_COUNTERS.items()
        ),
        unit="short",
        colours={words_: FAMILY_COLOUR[family] for family, words_ in FAMILIES_OF_COUNTERS.items()},
        nothing="No counter of any node shows a limit",
    )
    panel.maxDataPoints = 2 * LOOKS
    return panel


def _troubled() -> Panel:
    families = f'{{__name__=~"node:whyidle_(network|storage|cpu)_evidence:max5m", {v.CLUSTER}}}'
    evidence = f"max by ({v.BY_NODE}, signal) ({families})"
    limit = f"node:whyidle_link_bytes:limit{{{v.CLUSTER}}}"
    of_best = f"{limit} / on ({v.CLUSTER_LABEL}) group_left () max by ({v.CLUSTER_LABEL}) ({limit})"
    panel = table(
        "Nodes with most signals, and with slow links",
        "For how much of the time range each signal of a node's counters showed a limit; and nodes whose links "
        "carry less in one direction than the links of the best node of the cluster, because a link is down or "
        "degraded.",
        now(f"topk($worst, {_of_the_time(evidence)})"),
        now(f"bottomk($worst, {of_best} < {DEGRADED})"),
        columns=[
            Column("node", "Node", link=to_node()),
            Column("signal", "Signal"),
            Column("A", "Of the time", "percentunit", cell="gauge", most=1, decimals=0, width=160),
            Column("B", "Links, of the best", "percentunit", decimals=0, width=130),
        ],
        sort="Of the time",
        width=11,
        nothing="No counter of any node showed a limit",
    )
    return _looking(panel)


def _of_the_time(evidence: str) -> str:
    """The share of the time range in which a signal agreed. The sums of hours have nothing of the first hour."""
    looked = f"sum_over_time(({evidence})[${{exact}}s:$__interval] @ end()) / {LOOKS_TAKEN}"
    hours = f"sum_over_time({hourly(EVIDENCE_BY_NODE)}{{{v.CLUSTER}}}[$__range])"
    lately = f"{seconds(DEFAULT.details_interval)} * sum_over_time(({evidence})[1h:{DEFAULT.details_interval}])"
    return by_length(looked, f"({hours} or {lately}) / $__range_s")


def _late_ranks() -> Panel:
    ranks = f"{v.CLUSTER}, {v.any_of('rank', 'late')}"
    first = f"topk($worst, sum by ({BY_RANK}) ({device_hours(f'{LATE_BY_RANK}{{{ranks}}}')}) > 0)"
    by_family = f"sum by ({BY_RANK}, family) (run_rank_family:whyidle_late:rate1h{{{ranks}}})"
    return table(
        "Ranks that made others wait",
        "GPU-hours for which each rank made the others of its run wait in the time range, and what made it late in the "
        "last hour. If the same node appears again and again, drain it.",
        now(first),
        now(f"topk by ({BY_RANK}) (1, {by_family}) and on ({BY_RANK}) {first}"),
        columns=[
            Column("owner", "Owner"),
            Column("run", "Run", link=to_run()),
            Column("rank", "Rank"),
            Column("A", "GPU-hours of others", HOURS, cell="gauge"),
            Column("family", "Late by", mappings=LATE_BY, cell="color-background", width=FAMILY_WIDTH),
        ],
        sort="GPU-hours of others",
        width=13,
        nothing="No rank made others wait",
    )


def _looking(panel: Panel) -> Panel:
    """Sets a panel to :data:`LOOKS` points, and so its scores."""
    panel.maxDataPoints = LOOKS
    return panel
