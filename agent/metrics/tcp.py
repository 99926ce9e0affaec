"""The metrics of the collector `tcp`."""

from __future__ import annotations

from .metric import Metric

METRICS: tuple[Metric, ...] = ()
