"""The metrics of the collector `cpu`."""

from __future__ import annotations

from .metric import Metric

SECONDS = Metric(
    "whyidle_cpu_seconds_total",
    "counter",
    "seconds",
    ("mode",),
    "Time of all CPUs of the node together, by what they did; the modes sum to the number of CPUs times wall time. "
    "Time in guests is part of user and nice. If there is little idle time, data workers compete for CPUs.",
    "stat, cpu",
)
ONLINE = Metric("whyidle_cpu_online_cpus", "gauge", "cpus", (), "CPUs of the node that are online.", "stat, cpu<n>")
LOAD = Metric(
    "whyidle_cpu_load_average",
    "gauge",
    "tasks",
    ("window",),
    "Tasks that ran, were ready to run, or were in an uninterruptible wait such as a read, averaged over 1, 5 "
    "and 15 minutes.",
    "loadavg",
)
FREQUENCY_LIMIT = Metric(
    "whyidle_cpu_frequency_limit_ratio",
    "gauge",
    "ratio",
    ("governor", "driver"),
    "The highest frequency that the governor lets CPUs have, as a share of what the hardware can, for the CPUs where "
    "it is lowest. If it is below 1, the training thread may launch work late. Absent without cpufreq, as in most "
    "virtual machines.",
    "cpufreq/policy<n>/scaling_max_freq",
)


def _line(line: str, name: str, kind: str, unit: str, text: str) -> Metric:
    return Metric(f"whyidle_cpu_{name}", kind, unit, (), text, f"stat, {line}")


LINES: dict[str, Metric] = {
    "ctxt": _line("ctxt", "context_switches_total", "counter", "switches", "Context switches of all CPUs."),
    "btime": _line("btime", "boot_time_seconds", "gauge", "seconds", "When the node booted, in Unix time."),
    "processes": _line("processes", "forks_total", "counter", "forks", "Processes and threads that were started."),
    "procs_running": _line(
        "procs_running",
        "running_tasks",
        "gauge",
        "tasks",
        "Tasks that run or are ready to run. If there are more tasks than CPUs, some wait for a CPU.",
    ),
    "procs_blocked": _line(
        "procs_blocked", "blocked_tasks", "gauge", "tasks", "Tasks that wait for I/O and cannot be interrupted."
    ),
}

METRICS: tuple[Metric, ...] = (SECONDS, ONLINE, LOAD, FREQUENCY_LIMIT, *LINES.values())
