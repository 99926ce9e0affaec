"""The metrics of the collector `rdma`."""

from __future__ import annotations

from .metric import Metric

METRICS: tuple[Metric, ...] = ()
