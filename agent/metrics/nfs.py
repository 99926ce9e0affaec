"""The metrics of the collector `nfs`."""

from __future__ import annotations

from .metric import Metric

METRICS: tuple[Metric, ...] = ()
