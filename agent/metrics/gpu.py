"""The metrics of the collector `gpu`."""

from __future__ import annotations

from .metric import Metric

METRICS: tuple[Metric, ...] = ()
