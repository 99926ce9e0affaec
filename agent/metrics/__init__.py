"""The declarations of all metrics that whyidle exports. Each collector has a module of the same name here.

The collectors, rules, dashboards, tests and the table in docs/metrics.md take names, labels and units from here. These
modules import only the standard library, so that generators of rules can import them without the agent's requirements.
"""

from __future__ import annotations

from . import (
    advice,
    cgroup,
    clock,
    cpu,
    disk,
    filesystem,
    fuse,
    gpu,
    identity,
    links,
    lustre,
    memory,
    mounts,
    nfs,
    nic,
    own,
    placement,
    pressure,
    process,
    qdisc,
    ranks,
    rdma,
    runs,
    tcp,
)
from .metric import Metric
from .ranks import DEVICE_SECONDS

BY_COLLECTOR: dict[str, tuple[Metric, ...]] = {
    "ranks": (*ranks.METRICS, *runs.METRICS, *mounts.METRICS, *links.METRICS),
    "gpu": gpu.METRICS,
    "nic": nic.METRICS,
    "tcp": tcp.METRICS,
    "qdisc": qdisc.METRICS,
    "rdma": rdma.METRICS,
    "disk": disk.METRICS,
    "nfs": nfs.METRICS,
    "lustre": lustre.METRICS,
    "fuse": fuse.METRICS,
    "filesystem": filesystem.METRICS,
    "pressure": pressure.METRICS,
    "cgroup": cgroup.METRICS,
    "cpu": cpu.METRICS,
    "memory": memory.METRICS,
    "process": process.METRICS,
    "placement": placement.METRICS,
    "clock": clock.METRICS,
    "identity": identity.METRICS,
    "advice": advice.METRICS,
    "own": own.METRICS,
}
"""Metrics by collector, in the order of exposition. `own` contains the metrics of the agent itself."""

METRICS: tuple[Metric, ...] = tuple(metric for metrics in BY_COLLECTOR.values() for metric in metrics)
METRIC: dict[str, Metric] = {metric.name: metric for metric in METRICS}

__all__ = ["BY_COLLECTOR", "DEVICE_SECONDS", "METRIC", "METRICS", "Metric"]
