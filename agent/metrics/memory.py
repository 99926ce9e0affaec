"""The metrics of the collector `memory`."""

from __future__ import annotations

from .metric import Metric

METRICS: tuple[Metric, ...] = ()
