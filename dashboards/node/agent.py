"""Whether the node's own reports can be believed: its clock, the agent, the hooks, and who is who."""

from __future__ import annotations

from ..vocabulary import Column, Panel, Section, line, now, query, section, steps, table, trend
from .selection import grows, level, levels, rate, series


def sections() -> list[Section]:
    return [
        section(
            "Can this be believed: clock, agent and hooks",
            line(6, _clock(), _collectors(), _errors()),
            line(6, _age(), _hooks(), _cost()),
            line(6, _clock_details(), _synchronised(), _failures()),
            line(6, _files(), _kubernetes(), _boot()),
            collapsed=True,
        ),
        section(
            "Who is who",
            line(6, _node(), _build(), _clock_source()),
            line(7, _ranks()),
            line(7, _pods()),
            line(7, _slurm()),
            collapsed=True,
        ),
    ]


def _clock() -> Panel:
    return trend(
        "Clock",
        "By how much the node's clock is off, as its time daemon estimates it, and at most; and what the kernel has "
        "still to correct. Times of nodes whose clocks differ cannot be compared.",
        *levels(
            {
                "whyidle_clock_estimated_error_seconds": "estimated error",
                "whyidle_clock_maximum_error_seconds": "maximum error",
                "whyidle_clock_offset_seconds": "still to correct",
            }
        ),
        unit="s",
        width=8,
        least=None,
    )


def _clock_details() -> Panel:
    skew = f"{series('whyidle_clock_time_seconds')} - timestamp({series('whyidle_clock_time_seconds')})"
    return trend(
        "Clock against Prometheus",
        "The node's clock at the scrape less the time that Prometheus gave the sample: the skew, less the time that "
        "the scrape took. All nodes should show about the same.",
        query(f"max({skew})", "skew"),
        unit="s",
        width=8,
        least=None,
    )


def _synchronised() -> Panel:
    return trend(
        "Clock: synchronised, and how",
        "1 if the kernel holds the clock for synchronised; by what factor it is sped up, as parts of a million above "
        "1; and TAI less UTC in seconds.",
        level("whyidle_clock_synchronised", "instance", "synchronised"),
        query(f"max(({series('whyidle_clock_frequency_ratio')} - 1) * 1e6)", "sped up (ppm)"),
        level("whyidle_clock_tai_offset_seconds", "instance", "TAI less UTC"),
        unit="short",
        width=8,
        least=None,
    )


def _collectors() -> Panel:
    return trend(
        "Collectors: how long they take",
        "Time of each collector's last answer, against its deadline of some seconds.",
        level("whyidle_collector_duration_seconds", "collector", "{{collector}}"),
        unit="s",
        width=8,
    )


def _age() -> Panel:
    return trend(
        "Collectors: up, and how old their answers are",
        "Age of each collector's last answer: more than a scrape interval while it hangs or fails. NVML and NFS are "
        "the ones that do.",
        level("whyidle_collector_age_seconds", "collector", "{{collector}}"),
        unit="s",
        width=8,
        thresholds=steps(60),
        dashed=True,
    )


def _errors() -> Panel:
    return trend(
        "Values that could not be read",
        "Per second, by collector, file and reason. Their series are absent meanwhile.",
        grows("whyidle_read_errors_total", "collector, file, reason", "{{collector}} {{file}} {{reason}}"),
        grows("whyidle_ledger_errors_total", "reason", "ledger {{reason}}"),
        unit="ops",
        width=8,
    )


def _failures() -> Panel:
    return trend(
        "Collectors: rounds without an answer",
        "Per second, by collector and reason: past its deadline, still hanging from before, no time left, or a fault.",
        grows("whyidle_collector_failures_total", "collector, reason", "{{collector}} {{reason}}"),
        unit="ops",
        width=8,
    )


def _hooks() -> Panel:
    return trend(
        "Hooks",
        "How many hooks of the ranks are active, absent or failed; and exceptions of whyidle's own per second that a "
        "hook swallowed. What a failed hook would have seen goes to host or unattributed.",
        query(f"count by (state) ({series('whyidle_hook_state')})", "{{state}}"),
        grows("whyidle_hook_faults_total", "owner, run, rank", "{{owner}}/{{run}} rank {{rank}} faults"),
        unit="short",
        width=8,
    )


def _cost() -> Panel:
    return trend(
        "Cost of the agent",
        "CPU-seconds per second that the agent takes, as a share of one CPU.",
        query(f"max({rate('process_cpu_seconds_total')})", "CPU"),
        unit="percentunit",
        width=8,
    )


def _files() -> Panel:
    return trend(
        "Memory of the agent",
        "Resident and virtual memory. Growth over days is a leak: please report it.",
        *levels({"process_resident_memory_bytes": "resident"}),
        unit="bytes",
        width=8,
    )


def _kubernetes() -> Panel:
    return trend(
        "Devices of Kubernetes",
        "Devices that the kubelet can give to pods, and has given. When those that it can give fall, devices became "
        "unhealthy; the difference is idle because nobody asked.",
        level("whyidle_kubernetes_allocatable_devices", "resource", "{{resource}} in all"),
        level("whyidle_kubernetes_allocated_devices", "resource", "{{resource}} given"),
        unit="short",
        width=8,
    )


def _boot() -> Panel:
    return trend(
        "Time since the start",
        "Of the node, and of the agent. A node that rebooted took its ranks along.",
        query(f"time() - max({series('whyidle_cpu_boot_time_seconds')})", "node"),
        query(f"time() - max({series('process_start_time_seconds')})", "agent"),
        unit="s",
        width=8,
    )


def _node() -> Panel:
    return table(
        "Node",
        "The kernel and the processor that it runs on.",
        now(series("whyidle_node_info")),
        columns=[Column("node", "Node"), Column("kernel", "Kernel"), Column("arch", "Processor")],
        width=10,
    )


def _build() -> Panel:
    return table(
        "Agent",
        "The agent's version, and the address where it was scraped.",
        now(series("whyidle_build_info")),
        columns=[Column("version", "Version"), Column("instance", "Address")],
        width=8,
    )


def _clock_source() -> Panel:
    return table(
        "Source of time",
        "What the kernel tells time by. With hpet or acpi_pm every look at the clock costs a thousand times as much.",
        now(series("whyidle_clock_info")),
        columns=[Column("source", "Source")],
        width=6,
    )


def _ranks() -> Panel:
    names = {
        "owner": "Owner",
        "run": "Run",
        "rank": "Rank",
        "local_rank": "Local rank",
        "world_size": "World size",
        "attempt": "Attempt",
        "device": "Device",
        "uuid": "UUID",
        "pid": "PID",
    }
    return table(
        "Identity of ranks",
        "The newest attempt of each rank. The PID is the one in the rank's own namespace.",
        now(series("whyidle_rank_info")),
        columns=[Column(label, title, width=340 if label == "uuid" else None) for label, title in names.items()],
    )


def _pods() -> Panel:
    names = ("owner", "run", "rank", "namespace", "pod", "container", "workload", "evidence")
    return table(
        "Pods of ranks",
        "The pod of each live rank, and whence it is known.",
        now(series("whyidle_rank_pod_info")),
        columns=[Column(name, name.capitalize()) for name in names],
        nothing="Not in Kubernetes",
    )


def _slurm() -> Panel:
    names = ("owner", "run", "rank", "job_id", "job_name", "user", "account", "partition", "qos", "step", "evidence")
    return table(
        "Slurm jobs of ranks",
        "The job of each live rank of Slurm's.",
        now(series("whyidle_rank_slurm_info")),
        columns=[Column(name, name.replace("_", " ").capitalize()) for name in names],
        nothing="No Slurm job",
    )
