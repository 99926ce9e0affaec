"""The metrics of the collector `disk`."""

from __future__ import annotations

from .metric import Metric

METRICS: tuple[Metric, ...] = ()
