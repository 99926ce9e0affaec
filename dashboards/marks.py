"""Marks on the time axis: starts, restarts, checkpoints, drains, new versions and alerts.

Each query compares with the point before ($__interval ago). So at any zoom, a mark is at the first point after its
event.
"""

from __future__ import annotations

from .colours import GREEN, GREY, ORANGE, PINK, RED, SKY
from .variables import CLUSTER, CLUSTER_LABEL, RUN, RUNS
from .vocabulary import Annotation

BACK = " offset $__interval"


def starts(matchers: str) -> Annotation:
    """Starts of the runs that ``matchers`` select, by their rank 0."""
    first = f'group by (owner, run, pid) (whyidle_rank_info{{{matchers}, rank="0", attempt="0"}}%s)'
    return Annotation("Starts", f"{first % ''} unless {first % BACK}", "Start", "{{owner}}/{{run}}", GREEN)


def restarts(matchers: str) -> Annotation:
    """Restarts of the runs that ``matchers`` select, by their rank 0: an elastic restart restarts all ranks."""
    attempts = f'group by (owner, run, attempt) (whyidle_rank_info{{{matchers}, rank="0"%s}}%s)'
    return Annotation(
        "Restarts",
        f"""{attempts % (', attempt!="0"', "")} unless {attempts % ("", BACK)}""",
        "Restart",
        "{{owner}}/{{run}}, attempt {{attempt}}",
        RED,
    )


def _checkpoints(matchers: str) -> Annotation:
    """Saves of checkpoints, by rank 0: either all ranks save or none."""
    return Annotation(
        "Checkpoints",
        f'sum by (owner, run) (increase(whyidle_checkpoints_total{{{matchers}, rank="0", kind="save"}}'
        "[$__interval])) > 0",
        "Checkpoint",
        "{{owner}}/{{run}}",
        GREY,
    )


CHECKPOINTS = _checkpoints(RUN)
CHECKPOINTS_OF_RUNS = _checkpoints(RUNS)

_CORDONED = "max by (node) (kube_node_spec_unschedulable%s) == 1"
DRAINS = Annotation(
    "Drains",
    f"{_CORDONED % ''} unless {_CORDONED % BACK}",
    "Node is drained",
    "{{node}}",
    ORANGE,
)
"""Drains, from kube-state-metrics if the same Prometheus scrapes it."""

_VERSIONS = f"group by ({CLUSTER_LABEL}, version) (whyidle_build_info{{{CLUSTER}}}%s)"
DEPLOYMENTS = Annotation(
    "Deployments",
    f"{_VERSIONS % ''} unless {_VERSIONS % BACK}",
    "New version of whyidle",
    "{{version}}",
    SKY,
)
ALERTS = Annotation(
    "Firing alerts",
    "max by (alertname, severity, owner, run, node) "
    f'(ALERTS{{alertstate="firing", alertname=~"Whyidle.+", severity!="info", {CLUSTER}}})',
    "{{alertname}}",
    "{{severity}} {{owner}}/{{run}} {{node}}",
    PINK,
)
