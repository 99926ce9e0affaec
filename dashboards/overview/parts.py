"""Queries that several panels of the overview share."""

from __future__ import annotations

from .. import variables as v
from ..vocabulary import gpu_hours

IDLE = 'family!="compute"'
LOST_NOW = f"run_family:whyidle_device_seconds:rate${{window}}{{{v.RUNS}, {IDLE}}}"
"""The number of idle GPUs now, by run and family. Those that a run was given and does not use are `unused`."""


def lost_hours(by: str) -> str:
    """Hours of the time range in which GPUs did not compute, those that runs were given and did not use included."""
    return f"sum by ({by}) ({gpu_hours(v.RUNS, IDLE)})"
