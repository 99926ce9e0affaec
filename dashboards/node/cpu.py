"""CPU and memory of a node, its control groups, and the processes of its ranks."""

from __future__ import annotations

from ..vocabulary import Column, Panel, Section, line, now, query, section, steps, table, trend
from .selection import each, grows, level, levels, mean, rate, series, total

RANK = "{{owner}}/{{run}} rank {{rank}}"
ROLE = "{{owner}}/{{run}} rank {{rank}} {{role}}"
BY_ROLE = "owner, run, rank, role"


def sections() -> list[Section]:
    return [
        section("CPU: who gets none", line(7, _modes(), _run_queue(), _throttled()), line(7, _pressure(), _workers())),
        section(
            "CPU and memory: details",
            line(6, _tasks(), _switches(), _cgroup_cpu()),
            line(6, _blocked(), _processes(), _resident()),
            line(6, _memory(), _swap(), _shortage()),
            line(6, _cgroup_memory(), _cgroup_events()),
            line(6, _cgroups()),
            collapsed=True,
        ),
    ]


def _modes() -> Panel:
    whole = f"sum({rate('whyidle_cpu_seconds_total')})"
    return trend(
        "CPU time of the node",
        "Share of all CPUs' time by what they did. Little idle means that data workers compete for CPUs; iowait is "
        "idle time with a read under way; steal went to other machines of the host.",
        query(f"{total('mode', rate('whyidle_cpu_seconds_total'))} / on () group_left () {whole}", "{{mode}}"),
        unit="percentunit",
        width=8,
        most=1,
        stacked=True,
    )


def _run_queue() -> Panel:
    return trend(
        "Ranks and workers that were ready and got no CPU",
        "Seconds per second for which main threads waited for a CPU, summed over the processes of a role. It grows "
        "where there are more threads than CPUs, or a control group is throttled.",
        grows("whyidle_process_runqueue_seconds_total", BY_ROLE, ROLE),
        unit="short",
        width=8,
    )


def _throttled() -> Panel:
    throttled, periods = "whyidle_cgroup_cpu_throttled_periods_total", "whyidle_cgroup_cpu_periods_total"
    return trend(
        "Control groups that used up their CPU limit",
        "Share of periods in which the group had to stop, and seconds per second for which it was kept from running, "
        "summed over CPUs. Anything steady means that the limit is too small.",
        query(mean("cgroup", throttled, periods), "{{cgroup}} periods"),
        grows("whyidle_cgroup_cpu_throttled_seconds_total", "cgroup", "{{cgroup}} time (s/s)"),
        unit="percentunit",
        width=8,
        nothing="No rank's control group has a CPU limit",
        thresholds=steps(0.1),
        dashed=True,
    )


def _pressure() -> Panel:
    return trend(
        "CPU, memory and interrupt pressure",
        "Share of time in which some tasks, or all of them (full), stalled: of the node, and on CPU and memory in the "
        "ranks' control groups.",
        grows(
            "whyidle_pressure_stalled_seconds_total", "resource, kind", "node {{resource}} {{kind}}", 'resource!="io"'
        ),
        grows(
            "whyidle_cgroup_pressure_stalled_seconds_total",
            "cgroup, resource, kind",
            "{{cgroup}} {{resource}} {{kind}}",
            'resource!="io"',
        ),
        unit="percentunit",
        thresholds=steps(0.1),
        dashed=True,
    )


def _workers() -> Panel:
    return trend(
        "CPU time of ranks and workers",
        "CPU-seconds per second, all processes of a role. Workers that each keep a CPU busy are the limit themselves: "
        "more of them, or cheaper transforms. A main process near 1 is bound by its Python.",
        grows("whyidle_process_cpu_seconds_total", BY_ROLE, ROLE),
        unit="short",
    )


def _tasks() -> Panel:
    return trend(
        "Tasks",
        "Tasks that run or want to, that wait for I/O, and the load; next to how many CPUs there are.",
        *levels(
            {
                "whyidle_cpu_running_tasks": "run or want to",
                "whyidle_cpu_blocked_tasks": "wait for I/O",
                "whyidle_cpu_online_cpus": "CPUs",
            }
        ),
        level("whyidle_cpu_load_average", "window", "load over {{window}}"),
        unit="short",
        width=8,
        dotted=["CPUs"],
    )


def _switches() -> Panel:
    return trend(
        "Context switches and forks",
        "Per second. Many switches are many small waits; forks in training are data workers that start anew.",
        *each({"whyidle_cpu_context_switches_total": "switches", "whyidle_cpu_forks_total": "forks"}),
        unit="ops",
        width=8,
    )


def _cgroup_cpu() -> Panel:
    return trend(
        "CPU time of control groups, and their limits",
        "CPU-seconds per second, and how many CPUs' time the group may use.",
        grows("whyidle_cgroup_cpu_seconds_total", "cgroup", "{{cgroup}}"),
        level("whyidle_cgroup_cpu_limit_cpus", "cgroup", "{{cgroup}} limit"),
        unit="short",
        width=8,
    )


def _blocked() -> Panel:
    return trend(
        "Ranks and workers that waited",
        "Seconds per second for which main threads neither ran nor were ready to, summed over the processes of a role: "
        "for storage, network, a GPU, a lock, or merely for work.",
        grows("whyidle_process_blocked_seconds_total", BY_ROLE, ROLE),
        unit="short",
        width=8,
    )


def _processes() -> Panel:
    return trend(
        "Workers and threads",
        "Processes under each rank, and threads by role. Many more threads than CPUs make them wait for one another.",
        level("whyidle_process_workers", "owner, run, rank", RANK + " workers"),
        level("whyidle_process_threads", BY_ROLE, ROLE + " threads"),
        unit="short",
        width=8,
    )


def _resident() -> Panel:
    return trend(
        "Memory of ranks and workers",
        "Resident memory, summed over the processes of a role; pages that forked workers share count once for each. "
        "Steady growth ends in a kill.",
        level("whyidle_process_resident_bytes", BY_ROLE, ROLE),
        unit="bytes",
        width=8,
    )


def _memory() -> Panel:
    return trend(
        "Memory",
        "What processes can still have, what is used for nothing, and what processes and shared memory hold. Batches "
        "pass through shared memory.",
        *levels(
            {
                "whyidle_memory_available_bytes": "available",
                "whyidle_memory_free_bytes": "free",
                "whyidle_memory_anonymous_bytes": "of processes",
                "whyidle_memory_shared_bytes": "shared",
                "whyidle_memory_total_bytes": "total",
                "whyidle_memory_swap_free_bytes": "swap, free",
                "whyidle_memory_swap_total_bytes": "swap, total",
            }
        ),
        unit="bytes",
        width=8,
        dotted=["total", "swap, total"],
    )


def _swap() -> Panel:
    return trend(
        "Swap",
        "Bytes per second that went out to swap and came back. Any steady traffic makes a rank late.",
        *each({"whyidle_memory_swapped_in_bytes_total": "in", "whyidle_memory_swapped_out_bytes_total": "out"}),
        unit="Bps",
        width=8,
    )


def _shortage() -> Panel:
    return trend(
        "Shortage of memory",
        "Per second: allocations that had to free memory first, page faults that waited for a disk, as with mmap, of "
        "the node and of each rank, bytes searched for an allocation, and processes that were killed.",
        *each(
            {
                "whyidle_memory_allocation_stalls_total": "stalls",
                "whyidle_memory_major_faults_total": "major faults",
                "whyidle_memory_direct_scanned_bytes_total": "searched (B/s)",
                "whyidle_memory_oom_kills_total": "kills",
            }
        ),
        grows("whyidle_process_major_faults_total", "owner, run, rank", RANK + " major faults"),
        unit="short",
        width=8,
    )


def _cgroup_memory() -> Panel:
    return trend(
        "Memory of control groups, and their limits",
        "The group's memory, its page cache included. At the limit, cache has to be read again, and then a process is "
        "killed.",
        level("whyidle_cgroup_memory_bytes", "cgroup", "{{cgroup}}"),
        level("whyidle_cgroup_memory_limit_bytes", "cgroup", "{{cgroup}} limit"),
        unit="bytes",
    )


def _cgroup_events() -> Panel:
    return trend(
        "Control groups that came up against their memory",
        "Per second, by event: slowed down (high), at the limit (max), a process was killed (oom_kill).",
        grows("whyidle_cgroup_memory_events_total", "cgroup, event", "{{cgroup}} {{event}}"),
        unit="ops",
    )


def _cgroups() -> Panel:
    return table(
        "Control groups of ranks",
        "The group that each rank is in (own), and those above it that set a limit.",
        now(series("whyidle_cgroup_rank_info")),
        columns=[
            Column("owner", "Owner"),
            Column("run", "Run"),
            Column("rank", "Rank"),
            Column("level", "Level"),
            Column("cgroup", "Control group"),
        ],
    )
