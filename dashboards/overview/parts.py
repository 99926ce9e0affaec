"""Queries that several panels of the overview share."""

from __future__ import annotations

from .. import variables as v

IDLE = 'family!="compute"'
LOST = f"run_family:whyidle_billed_seconds:increase{{{v.RUNS}, {IDLE}}}"
"""The selector of lost device-seconds, each counted once, to be summed over a time range."""
LOST_NOW = f"run_family:whyidle_device_seconds:rate${{window}}{{{v.RUNS}, {IDLE}}}"
"""The number of idle GPUs now, by run and family."""
