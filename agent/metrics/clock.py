"""The metrics of the collector `clock`."""

from __future__ import annotations

from .metric import Metric

METRICS: tuple[Metric, ...] = ()
