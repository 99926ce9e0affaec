"""The metrics of the agent itself: whether each collector answered, and what it could not read."""

from __future__ import annotations

from .metric import Metric

_COLLECTOR = ("collector",)

UP = Metric(
    "whyidle_collector_up",
    "gauge",
    "bool",
    _COLLECTOR,
    "1 if the collector answered within its deadline, 0 if it failed or hangs. Absent where this node has nothing for "
    "it to read.",
    "<fence>",
)
DURATION = Metric(
    "whyidle_collector_duration_seconds",
    "gauge",
    "seconds",
    _COLLECTOR,
    "How long the collector's last answer took.",
    "<fence>",
)
AGE = Metric(
    "whyidle_collector_age_seconds",
    "gauge",
    "seconds",
    _COLLECTOR,
    "Time since the collector's last answer; more than a scrape interval only while it hangs or fails.",
    "<fence>",
)
FAILURES = Metric(
    "whyidle_collector_failures_total",
    "counter",
    "failures",
    (*_COLLECTOR, "reason"),
    "Rounds in which the collector gave no answer: past its deadline (deadline), still hanging from an earlier round "
    "(hanging), no time left for it in this scrape (skipped), or a fault of its own (fault).",
    "<fence>",
)
READ_ERRORS = Metric(
    "whyidle_read_errors_total",
    "counter",
    "errors",
    (*_COLLECTOR, "device", "file", "reason"),
    "Values that could not be read, by what they belong to (a device, or empty), the file or call, and the reason. "
    "Their series are absent meanwhile.",
    "<fence>",
)
BUILD = Metric("whyidle_build_info", "gauge", "info", ("version",), "The agent's version; always 1.", "<build>")

_PROCESS = "prometheus_client's ProcessCollector"
PROCESS: tuple[Metric, ...] = (
    Metric("process_cpu_seconds_total", "counter", "seconds", (), "CPU time of the agent, user and system.", _PROCESS),
    Metric("process_max_fds", "gauge", "files", (), "How many files the agent may have open.", _PROCESS),
    Metric("process_open_fds", "gauge", "files", (), "How many files the agent has open.", _PROCESS),
    Metric("process_resident_memory_bytes", "gauge", "bytes", (), "Resident memory of the agent.", _PROCESS),
    Metric("process_start_time_seconds", "gauge", "seconds", (), "When the agent started, in Unix time.", _PROCESS),
    Metric("process_virtual_memory_bytes", "gauge", "bytes", (), "Virtual memory of the agent.", _PROCESS),
)
"""Of the agent's own process, under the names that everybody uses."""

METRICS: tuple[Metric, ...] = (UP, DURATION, AGE, FAILURES, READ_ERRORS, BUILD, *PROCESS)
