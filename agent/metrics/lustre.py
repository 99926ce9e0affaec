"""The metrics of the collector `lustre`."""

from __future__ import annotations

from .metric import Metric

METRICS: tuple[Metric, ...] = ()
