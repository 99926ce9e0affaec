"""CPUs and memory of a node, its control groups, and the processes of its ranks."""

from __future__ import annotations

from ..selection import each, grows, highest, level, levels, listed, rate, series, shortened, total
from ..vocabulary import Column, Panel, Section, line, query, table, trend
from ..vocabulary import section as _section

RANK = "{{owner}}/{{run}} rank {{rank}}"
BY_ROLE = "owner, run, rank, role"
ROLE = RANK + " {{role}}"
SOME = 3
"""The most ranks or control groups per counter in a panel with two counters."""


def section() -> Section:
    return _section(
        "CPUs, memory and control groups",
        line(9, _cpu(), _blocked(), _threads()),
        line(9, _tasks(), _switches(), _started()),
        line(9, _resident(), _memory(), _swap()),
        line(9, _shortage(), _pressure(), _cgroup_events()),
        line(9, _cgroups()),
        collapsed=True,
    )


def _cpu() -> Panel:
    return trend(
        "CPU time of ranks and workers",
        "CPU-seconds per second, all processes of a role. If every worker keeps a CPU busy, the workers are the "
        "limit: use more workers, or cheaper transforms. A main process near 1 is limited by its Python.",
        grows("whyidle_process_cpu_seconds_total", BY_ROLE, ROLE, most=8),
        unit="short",
        width=8,
    )


def _blocked() -> Panel:
    return trend(
        "Ranks and workers that waited",
        "Seconds per second for which main threads neither ran nor were ready to, summed over the processes of a role: "
        "they waited for storage, network, a GPU, a lock, or for work. Also the part of it that was spent on a disk.",
        grows("whyidle_process_blocked_seconds_total", BY_ROLE, ROLE, most=SOME),
        grows("whyidle_process_block_io_seconds_total", BY_ROLE, ROLE + " block I/O", most=SOME),
        unit="short",
        width=8,
    )


def _threads() -> Panel:
    return trend(
        "Workers and threads",
        "Processes under each rank, and threads by role. Many more threads than CPUs make them wait for one another.",
        level("whyidle_process_workers", "owner, run, rank", RANK + " workers", most=SOME),
        level("whyidle_process_threads", BY_ROLE, ROLE + " threads", most=SOME),
        unit="short",
        width=8,
    )


def _tasks() -> Panel:
    return trend(
        "Tasks",
        "Tasks that run or are ready to run, tasks that wait for I/O, and the load, next to the number of CPUs.",
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
        "Per second. Many switches mean many small waits. Forks during training mean that data workers start again.",
        *each({"whyidle_cpu_context_switches_total": "switches", "whyidle_cpu_forks_total": "forks"}),
        unit="ops",
        width=8,
    )


def _started() -> Panel:
    return trend(
        "Time since the start",
        "Time since the node and the agent started. When a node reboots, its ranks end.",
        query(f"time() - max({series('whyidle_cpu_boot_time_seconds')})", "node"),
        query(f"time() - max({series('process_start_time_seconds')})", "agent"),
        unit="s",
        width=8,
    )


def _resident() -> Panel:
    return trend(
        "Memory of ranks and workers",
        "Resident memory, summed over the processes of a role; pages that forked workers share count once for "
        "each worker. If it grows steadily, a process will be killed.",
        level("whyidle_process_resident_bytes", BY_ROLE, ROLE, most=8),
        unit="bytes",
        width=8,
    )


def _memory() -> Panel:
    return trend(
        "Memory of the node",
        "Memory that is available to processes, free memory, and memory that processes and shared memory use. "
        "Batches use shared memory.",
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
        "Swap, and memory searched",
        "Bytes per second that were moved to swap and back, and that were scanned to free memory. Any steady "
        "traffic makes a rank late.",
        *each(
            {
                "whyidle_memory_swapped_in_bytes_total": "in",
                "whyidle_memory_swapped_out_bytes_total": "out",
                "whyidle_memory_direct_scanned_bytes_total": "searched",
            }
        ),
        unit="Bps",
        width=8,
    )


def _shortage() -> Panel:
    return trend(
        "Shortage of memory",
        "Per second: allocations that had to free memory first, and page faults that waited for a disk, as with mmap, "
        "of the node and of each rank.",
        *each(
            {
                "whyidle_memory_allocation_stalls_total": "stalls",
                "whyidle_memory_major_faults_total": "major faults",
            }
        ),
        grows("whyidle_process_major_faults_total", "owner, run, rank", RANK + " major faults", most=6),
        unit="ops",
        width=8,
    )


def _pressure() -> Panel:
    by = "cgroup, resource, kind"
    stalled = total(by, rate("whyidle_cgroup_pressure_stalled_seconds_total"))
    return trend(
        "Pressure in control groups",
        "Share of time in which some tasks of a control group of ranks, or all of them (full), stalled on CPU, memory "
        "or I/O.",
        query(shortened(highest(stalled, by, 6)), "{{cgroup}} {{resource}} {{kind}}"),
        unit="percentunit",
        width=8,
        nothing="The kernel tells no pressure of control groups",
    )


def _cgroup_events() -> Panel:
    by = "cgroup, event"
    events = total(by, rate("whyidle_cgroup_memory_events_total"))
    return trend(
        "Control groups that came up against their memory",
        "Per second, by event: slowed down (high), at the limit (max), a process was killed (oom_kill).",
        query(shortened(highest(events, by, 6)), "{{cgroup}} {{event}}"),
        unit="ops",
        width=8,
    )


def _cgroups() -> Panel:
    ranks = "owner, run, rank, level, cgroup"
    return table(
        "Control groups of ranks",
        "The group that each rank is in (own), and those above it that set a limit: CPUs that it uses and may "
        "use, its memory (page cache included), and the limit. At the limit, first cached files have to be read "
        "again, and then a process is killed.",
        listed(f"max by ({ranks}) ({series('whyidle_cgroup_rank_info')})"),
        listed(total("cgroup", rate("whyidle_cgroup_cpu_seconds_total"))),
        *(
            listed(f"max by (cgroup) ({series(f'whyidle_cgroup_{limit}')})")
            for limit in ("cpu_limit_cpus", "memory_bytes", "memory_limit_bytes")
        ),
        columns=[
            Column("owner", "Owner"),
            Column("run", "Run"),
            Column("rank", "Rank", width=60),
            Column("level", "Level", width=70),
            Column("cgroup", "Control group"),
            Column("B", "CPUs used", "short", width=90),
            Column("C", "CPU limit", "short", width=90),
            Column("D", "Memory", "bytes", width=100),
            Column("E", "Memory limit", "bytes", width=110),
        ],
    )
