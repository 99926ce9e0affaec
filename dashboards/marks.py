"""Marks on the time axis: restarts, checkpoints and alerts."""

from __future__ import annotations

from .colours import GREY, PINK, RED
from .variables import CLUSTER, RUN
from .vocabulary import Annotation

# Rank 0 speaks for its run: an elastic restart is one of all ranks, and every rank saves or none.
_ATTEMPTS = f'group by (run, attempt) (whyidle_rank_info{{{RUN}, rank="0"}}'

RESTARTS = Annotation(
    "Restarts",
    f'{_ATTEMPTS[:-1]}, attempt!="0"}}) unless {_ATTEMPTS} offset 1m)',
    "Restart",
    "{{run}}, attempt {{attempt}}",
    RED,
)
CHECKPOINTS = Annotation(
    "Checkpoints",
    f'sum by (run) (increase(whyidle_checkpoints_total{{{RUN}, rank="0", kind="save"}}[1m])) > 0',
    "Checkpoint",
    "{{run}}",
    GREY,
)
ALERTS = Annotation(
    "Firing alerts",
    f'max by (alertname, severity, run, node) (ALERTS{{alertstate="firing", alertname=~"Whyidle.+", {CLUSTER}}})',
    "{{alertname}}",
    "{{severity}} {{run}} {{node}}",
    PINK,
)
