"""Marks on the time axis: restarts, checkpoints and alerts."""

from __future__ import annotations

from .colours import GREY, PINK, RED
from .variables import CLUSTER, RUN
from .vocabulary import Annotation


def restarts(matchers: str) -> Annotation:
    """Of the runs that ``matchers`` choose. Rank 0 speaks for its run: an elastic restart is one of all ranks."""
    attempts = f'group by (owner, run, attempt) (whyidle_rank_info{{{matchers}, rank="0"%s}}%s)'
    return Annotation(
        "Restarts",
        f"""{attempts % (', attempt!="0"', "")} unless {attempts % ("", " offset 1m")}""",
        "Restart",
        "{{owner}}/{{run}}, attempt {{attempt}}",
        RED,
    )


# Every rank saves, or none.
CHECKPOINTS = Annotation(
    "Checkpoints",
    f'sum by (owner, run) (increase(whyidle_checkpoints_total{{{RUN}, rank="0", kind="save"}}[1m])) > 0',
    "Checkpoint",
    "{{owner}}/{{run}}",
    GREY,
)
ALERTS = Annotation(
    "Firing alerts",
    "max by (alertname, severity, owner, run, node) "
    f'(ALERTS{{alertstate="firing", alertname=~"Whyidle.+", {CLUSTER}}})',
    "{{alertname}}",
    "{{severity}} {{owner}}/{{run}} {{node}}",
    PINK,
)
