"""What several panels of the first screen ask."""

from __future__ import annotations

from .. import variables as v

IDLE = 'family!="compute"'
LOST = f"run_family:whyidle_billed_seconds:increase{{{v.RUNS}, {IDLE}}}"
"""Device-seconds that were lost, each once: of a time range."""
SHORT = {"lost": "repeated steps"}
"""A family's name where it would not say enough alone."""
LOST_NOW = f"run_family:whyidle_device_seconds:rate${{window}}{{{v.RUNS}, {IDLE}}}"
"""How many GPUs are lost."""
