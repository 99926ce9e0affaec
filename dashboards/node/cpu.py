"""CPU and memory of a node: how much its ranks and their data workers lack."""

from __future__ import annotations

from ..selection import grows, highest, mean, rate, series, shortened, total
from ..vocabulary import Panel, Section, line, query, steps, trend
from ..vocabulary import section as _section

BY_ROLE = "owner, run, rank, role"
ROLE = "{{owner}}/{{run}} rank {{rank}} {{role}}"


def section() -> Section:
    return _section(
        "CPU and memory",
        line(8, _modes(), _run_queue(), _throttled()),
        line(7, _memory(), _pressure()),
    )


def _modes() -> Panel:
    whole = f"sum({rate('whyidle_cpu_seconds_total')})"
    return trend(
        "CPU time of the node",
        "Share of the time of all CPUs, by what the CPUs did. If there is little idle time, data workers compete for "
        "CPUs. The line iowait is idle time during a read. The line steal is time that other virtual machines of the "
        "host took.",
        query(f"{total('mode', rate('whyidle_cpu_seconds_total'))} / on () group_left () {whole}", "{{mode}}"),
        unit="percentunit",
        width=8,
        most=1,
        stacked=True,
    )


def _run_queue() -> Panel:
    return trend(
        "Ranks and workers that were ready and got no CPU",
        "Seconds per second for which main threads waited for a CPU, summed over the processes of a role. Only the "
        "six highest values are shown. It grows where there are more threads than CPUs, or a control group is "
        "throttled.",
        grows("whyidle_process_runqueue_seconds_total", BY_ROLE, ROLE, most=6),
        unit="short",
        width=8,
    )


def _throttled() -> Panel:
    throttled, periods = "whyidle_cgroup_cpu_throttled_periods_total", "whyidle_cgroup_cpu_periods_total"
    return trend(
        "Control groups that used up their CPU limit",
        "Share of periods in which the group had to stop. If it happens all the time, the limit is too small.",
        query(shortened(highest(mean("cgroup", throttled, periods), "cgroup", 6)), "{{cgroup}}"),
        unit="percentunit",
        width=8,
        most=1,
        nothing="No rank's control group has a CPU limit",
        thresholds=steps(0.1),
        dashed=True,
    )


def _memory() -> Panel:
    available, whole = series("whyidle_memory_available_bytes"), series("whyidle_memory_total_bytes")
    swap, swap_whole = series("whyidle_memory_swap_free_bytes"), series("whyidle_memory_swap_total_bytes")
    group = "max by (cgroup) ({})".format
    used, limit = group(series("whyidle_cgroup_memory_bytes")), group(series("whyidle_cgroup_memory_limit_bytes"))
    return trend(
        "Memory in use, as a share of all",
        "Memory that is not available to further processes, as a share of the memory of the node, its swap and "
        "the ranks' control groups, page cache included. At the limit of a control group, first cached files have "
        "to be read again, and then a process is killed.",
        query(f"1 - max({available}) / max({whole})", "node"),
        query(f"1 - max({swap}) / (max({swap_whole}) > 0)", "swap"),
        query(shortened(highest(f"{used} / {limit}", "cgroup", 8)), "{{cgroup}}"),
        unit="percentunit",
        most=1,
        thresholds=steps(0.95),
        dashed=True,
    )


def _pressure() -> Panel:
    return trend(
        "Pressure",
        "Share of time in which some tasks of the node, or all of them (full), stalled on CPU, memory, I/O or "
        "interrupts. I/O pressure without disk I/O comes from a network file system.",
        grows("whyidle_pressure_stalled_seconds_total", "resource, kind", "{{resource}} {{kind}}"),
        unit="percentunit",
        thresholds=steps(0.1),
        dashed=True,
        nothing="The kernel tells no pressure",
    )
