"""The metrics of the collector `fuse`."""

from __future__ import annotations

from .metric import Metric

WAITING = Metric(
    "whyidle_fuse_waiting_requests",
    "gauge",
    "requests",
    ("device", "fstype", "mount"),
    "Requests that the daemon of a FUSE file system has not answered yet, at the moment of the scrape. The label "
    "device is the number of the file system, as in whyidle_filesystem_rank_info. The label mount is empty if only a "
    "container mounts it. If the value stays above 0 while ranks wait for data, the file system is slow.",
    "/sys/fs/fuse/connections/<number>/waiting",
)

METRICS: tuple[Metric, ...] = (WAITING,)
