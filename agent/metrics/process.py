"""The metrics of the collector `process`."""

from __future__ import annotations

from .metric import Metric

METRICS: tuple[Metric, ...] = ()
