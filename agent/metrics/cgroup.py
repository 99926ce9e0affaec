"""The metrics of the collector `cgroup`."""

from __future__ import annotations

from .metric import Metric
from .ranks import RANK

_CGROUP = ("cgroup",)
US = 1_000_000

INFO = Metric(
    "whyidle_cgroup_rank_info",
    "gauge",
    "info",
    (*RANK, "cgroup", "level"),
    "The control group that a rank's process is in (level own), and those above it that set a limit on CPU or memory "
    "(level above). Always 1.",
    "<pid>/cgroup",
)
STALLED = Metric(
    "whyidle_cgroup_pressure_stalled_seconds_total",
    "counter",
    "seconds",
    (*_CGROUP, "resource", "kind"),
    "Time in which some tasks of the group, or all tasks that were not idle (kind full), stalled on the "
    "resource: cpu, io or "
    "memory. A throttled group stalls on cpu.",
    "fs/cgroup/<cgroup>/<resource>.pressure",
    per=US,
)
CPU = Metric(
    "whyidle_cgroup_cpu_seconds_total",
    "counter",
    "seconds",
    _CGROUP,
    "CPU time of the group. A rate near the limit means that the group will soon be throttled.",
    "fs/cgroup/<cgroup>/cpu.stat, usage_usec; version 1: cpuacct.usage, ns",
    per=US,
)
PERIODS = Metric(
    "whyidle_cgroup_cpu_periods_total",
    "counter",
    "periods",
    _CGROUP,
    "Periods of the CPU limit in which the group had something to run.",
    "fs/cgroup/<cgroup>/cpu.stat, nr_periods",
)
THROTTLED_PERIODS = Metric(
    "whyidle_cgroup_cpu_throttled_periods_total",
    "counter",
    "periods",
    _CGROUP,
    "Periods in which the group used up its CPU limit and had to stop. Its share of all periods shows how often "
    "the limit is too small.",
    "fs/cgroup/<cgroup>/cpu.stat, nr_throttled",
)
THROTTLED = Metric(
    "whyidle_cgroup_cpu_throttled_seconds_total",
    "counter",
    "seconds",
    _CGROUP,
    "Time for which the CPU limit kept the group from running, summed over the CPUs, so it can grow faster than time.",
    "fs/cgroup/<cgroup>/cpu.stat, throttled_usec; version 1: throttled_time, ns",
    per=US,
)
CPU_LIMIT = Metric(
    "whyidle_cgroup_cpu_limit_cpus",
    "gauge",
    "cpus",
    _CGROUP,
    "How many CPUs the group may use. Absent if there is no limit.",
    "fs/cgroup/<cgroup>/cpu.max; version 1: cpu.cfs_{quota,period}_us",
)
MEMORY = Metric(
    "whyidle_cgroup_memory_bytes",
    "gauge",
    "bytes",
    _CGROUP,
    "Memory of the group, its page cache included.",
    "fs/cgroup/<cgroup>/memory.current; version 1: memory.usage_in_bytes",
)
MEMORY_LIMIT = Metric(
    "whyidle_cgroup_memory_limit_bytes",
    "gauge",
    "bytes",
    _CGROUP,
    "The memory limit of the group. Absent if there is no limit.",
    "fs/cgroup/<cgroup>/memory.max; version 1: memory.limit_in_bytes",
)
MEMORY_EVENTS = Metric(
    "whyidle_cgroup_memory_events_total",
    "counter",
    "events",
    (*_CGROUP, "event"),
    "How often the group reached its memory limits: high (slowed down to reclaim memory), max (at its limit, "
    "often page cache that then has to be read again), oom_kill (a process was killed). Version 1 of control "
    "groups only has oom_kill.",
    "fs/cgroup/<cgroup>/memory.events; version 1: memory.oom_control",
)

METRICS: tuple[Metric, ...] = (
    INFO,
    STALLED,
    CPU,
    PERIODS,
    THROTTLED_PERIODS,
    THROTTLED,
    CPU_LIMIT,
    MEMORY,
    MEMORY_LIMIT,
    MEMORY_EVENTS,
)
