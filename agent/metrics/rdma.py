"""The metrics of the collector `rdma`: InfiniBand, RoCE, iWARP and EFA adapters."""

from __future__ import annotations

from . import rdma_errors, rdma_hw, rdma_port
from .metric import Metric
from .rdma_row import Row

_FAMILIES = (
    *rdma_hw.COMMON,
    *rdma_hw.CONGESTION,
    *rdma_hw.RELIABILITY,
    *rdma_hw.WORK,
    *rdma_errors.ERRORS,
)

COUNTERS: dict[str, Row] = rdma_port.COUNTERS
"""The files in ``counters/``."""
HW_COUNTERS: dict[str, Row] = {file: Row(one.metric, extra) for one in _FAMILIES for file, extra in one.files.items()}
"""The files in ``hw_counters/``, of all drivers."""

METRICS: tuple[Metric, ...] = (
    *rdma_port.METRICS,
    *(one.metric for one in _FAMILIES if one.metric not in rdma_port.METRICS),
)
