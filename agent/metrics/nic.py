"""The metrics of the collector `nic`."""

from __future__ import annotations

from .metric import Metric

METRICS: tuple[Metric, ...] = ()
