"""Queries that several panels of the overview share."""

from __future__ import annotations

from ...alerts.promql import labelled
from ...alerts.recording.names import UNUSED_GPUS
from ...verdict.unused import HEADLINE
from .. import variables as v
from ..vocabulary import device_hours

IDLE = 'family!="compute"'
LOST = f"run_family:whyidle_billed_seconds:increase{{{v.RUNS}, {IDLE}}}"
"""The selector of lost device-seconds, each counted once, to be summed over a time range."""
LOST_NOW = f"run_family:whyidle_device_seconds:rate${{window}}{{{v.RUNS}, {IDLE}}}"
"""The number of idle GPUs now, by run and family. Those that a run was given and does not use are `unused`."""


def lost_hours(by: str) -> str:
    """Device-hours of the time range that were not compute, and hours of GPUs that runs were given and did not use."""
    unused = labelled(device_hours(f"{UNUSED_GPUS}{{{v.RUNS}}}"), "family", HEADLINE)
    return f"sum by ({by}) ({device_hours(LOST)} or {unused})"
