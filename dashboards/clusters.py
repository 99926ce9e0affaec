"""The panels of clusters on the dashboard Fleet."""

from __future__ import annotations

from ..agent.metrics.gpu import UNHOOKED_FAMILY
from . import variables as v
from .vocabulary import (
    FAMILY,
    FAMILY_WIDTH,
    GOOD,
    Column,
    Panel,
    blamed,
    now,
    over_range,
    query,
    table,
    trend,
    worst,
)

LOST = f'family!~"compute|{UNHOOKED_FAMILY}"'


def table_of_clusters() -> Panel:
    waits = f'cluster_family:whyidle_share:ratio$window{{{v.CLUSTER}, family="straggler"}}'
    most = f"topk by ({v.CLUSTER_LABEL}) (1, {blamed(v.CLUSTER, LOST, v.CLUSTER_LABEL)})"
    return table(
        "Clusters",
        "Goodput of each cluster's ranks, and what it loses most to: the largest share of its device time that "
        "is not compute. Waits for late ranks count under what made them late; the last column shows these waits.",
        now(f"bottomk($worst, cluster:whyidle_goodput:ratio$window{{{v.CLUSTER}}})"),
        now(f"topk($worst, {most})"),
        now(f"topk($worst, max by ({v.CLUSTER_LABEL}) ({waits}))"),
        columns=[
            Column(v.CLUSTER_LABEL, "Cluster"),
            Column("A", "Goodput", "percentunit", thresholds=GOOD, cell="color-background", decimals=0, width=85),
            Column("family", "Loses most to", mappings=FAMILY, cell="color-background", width=FAMILY_WIDTH),
            Column("B", "Share", "percentunit", decimals=0, width=65),
            Column("C", "Waits for late", "percentunit", decimals=0, width=115),
        ],
        sort="Goodput",
        rising=True,
        width=12,
    )


def goodput() -> Panel:
    recorded = f"cluster:whyidle_goodput:ratio$window{{{v.CLUSTER}}}"
    return trend(
        "Goodput by cluster",
        "Share of each cluster's device time that was compute or rollouts for new steps, for the clusters where it is "
        "lowest. If only one cluster drops, look at its network, its storage or its last release.",
        query(worst(recorded, f"-{over_range(recorded)}", v.CLUSTER_LABEL, "16"), f"cluster {{{{{v.CLUSTER_LABEL}}}}}"),
        unit="percentunit",
        most=1,
    )
