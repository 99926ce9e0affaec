"""The metrics of the collector `qdisc`."""

from __future__ import annotations

from .metric import Metric

_QUEUE = ("device", "kind")
_STATS = "RTM_GETQDISC, TCA_STATS2: gnet_stats_queue"

OVERLIMITS = Metric(
    "whyidle_qdisc_overlimits_total",
    "counter",
    "packets",
    _QUEUE,
    "How often the queueing disciplines of one kind on an interface held a packet back to keep a rate. If it "
    "grows while ranks wait for transfers, the limit is a rate of traffic control (tc), not the link.",
    f"{_STATS}.overlimits",
)
BACKLOG = Metric(
    "whyidle_qdisc_backlog_bytes",
    "gauge",
    "bytes",
    _QUEUE,
    "Bytes that wait in the queueing disciplines of one kind on an interface. A queue that does not empty means "
    "a slow link or a rate limit.",
    f"{_STATS}.backlog",
)

METRICS: tuple[Metric, ...] = (OVERLIMITS, BACKLOG)
