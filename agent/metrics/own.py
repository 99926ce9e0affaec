"""The metrics of the agent itself: whether each collector answered, and what it could not read."""

from __future__ import annotations

from .metric import Metric

_COLLECTOR = ("collector",)

UP = Metric(
    "whyidle_collector_up",
    "gauge",
    "bool",
    _COLLECTOR,
    "1 if the collector answered within its deadline, 0 if it failed or hangs. Absent if the node "
    "has nothing that the collector could read.",
    "<fence>",
)
DURATION = Metric(
    "whyidle_collector_duration_seconds",
    "gauge",
    "seconds",
    _COLLECTOR,
    "How long the collector took for its last result.",
    "<fence>",
)
AGE = Metric(
    "whyidle_collector_age_seconds",
    "gauge",
    "seconds",
    _COLLECTOR,
    "Time since the collector's last result. It is longer than a scrape interval only while the collector hangs "
    "or fails.",
    "<fence>",
)
FAILURES = Metric(
    "whyidle_collector_failures_total",
    "counter",
    "failures",
    (*_COLLECTOR, "reason"),
    "Scrapes without a result of the collector: it took longer than its deadline (deadline), still hangs from an "
    "earlier scrape (hanging), had no time left in this scrape (skipped), or failed (fault).",
    "<fence>",
)
READ_ERRORS = Metric(
    "whyidle_read_errors_total",
    "counter",
    "errors",
    (*_COLLECTOR, "device", "file", "reason"),
    "Values that could not be read, by device (empty if there is none), file or call, and reason. Their series "
    "are absent until they can be read again.",
    "<fence>",
)
BUILD = Metric("whyidle_build_info", "gauge", "info", ("version",), "The agent's version; always 1.", "<build>")

_PROCESS = (
    ("cpu_seconds_total", "seconds", "CLOCK_PROCESS_CPUTIME_ID", "CPU time of the agent, user and system."),
    ("max_fds", "files", "RLIMIT_NOFILE", "How many files the agent may have open."),
    ("open_fds", "files", "/proc/self/fd", "How many files the agent has open."),
    ("resident_memory_bytes", "bytes", "/proc/self/statm", "Resident memory of the agent."),
    ("start_time_seconds", "seconds", "/proc/self/stat", "When the agent started, in Unix time."),
    ("virtual_memory_bytes", "bytes", "/proc/self/statm", "Virtual memory of the agent."),
)
PROCESS: tuple[Metric, ...] = tuple(
    Metric(f"process_{name}", "counter" if name.endswith("_total") else "gauge", unit, (), help_text, source)
    for name, unit, source, help_text in _PROCESS
)
"""The metrics of the agent's own process, under the usual names (`process_*`)."""

METRICS: tuple[Metric, ...] = (UP, DURATION, AGE, FAILURES, READ_ERRORS, BUILD, *PROCESS)
