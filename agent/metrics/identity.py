"""The metrics of the collector `identity`."""

from __future__ import annotations

from .metric import Metric

METRICS: tuple[Metric, ...] = ()
