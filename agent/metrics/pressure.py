"""The metrics of the collector `pressure`."""

from __future__ import annotations

from .metric import Metric

STALLED = Metric(
    "whyidle_pressure_stalled_seconds_total",
    "counter",
    "seconds",
    ("resource", "kind"),
    "Time in which some tasks of the node, or all tasks that were not idle (kind full), stalled on the resource: "
    "cpu, io, "
    "memory or irq. Its rate is the share of time that was lost; io stalls without disk I/O come from a network "
    "file system.",
    "pressure/<resource>",
    per=1_000_000,
)

METRICS: tuple[Metric, ...] = (STALLED,)
