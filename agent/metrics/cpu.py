"""The metrics of the collector `cpu`."""

from __future__ import annotations

from .metric import Metric

METRICS: tuple[Metric, ...] = ()
