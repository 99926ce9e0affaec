"""The metrics of the collector `filesystem`."""

from __future__ import annotations

from .metric import Metric

METRICS: tuple[Metric, ...] = ()
