"""The metrics of the collector `pressure`."""

from __future__ import annotations

from .metric import Metric

METRICS: tuple[Metric, ...] = ()
