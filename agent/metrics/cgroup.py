"""The metrics of the collector `cgroup`."""

from __future__ import annotations

from .metric import Metric

METRICS: tuple[Metric, ...] = ()
