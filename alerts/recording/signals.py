"""The table of signals: expressions on node counters that agree with a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...agent.metrics.ranks import RANK, RUN
from ...verdict.shortage import SHORTAGES
from ..config import Config
from ..rule import Record
from .names import blocked_samples, link_use, major_faults, queued_ranks

STOLEN, QUEUED = "cpus_stolen", "ranks_queued"
SHORTAGE_WORDS: dict[str, str] = {STOLEN: SHORTAGES["stolen"], QUEUED: SHORTAGES["queued"]}
"""Signals of a shortage of CPU time -> the words of the report for it."""


@dataclass(frozen=True)
class Signal:
    """``expr`` has a sample per device of a target. The signal agrees where one is at least ``threshold``.

    With ``of_node``, it has a sample per node instead. With ``of_waits`` too, ``expr`` is a share of all time and is
    divided by the share in which the node's ranks wait in transfers. The reason: a link that is busy for a quarter of
    the time can still cause waits that take a quarter of the time.
    """

    family: str
    name: str
    expr: str
    threshold: float
    why: str = ""
    of_node: bool = False
    of_waits: bool = False


class Link(NamedTuple):
    use: str
    """The throughput of each such link, as a share of what it can carry."""
    full: float
    """The share from which on the link counts as the limit."""


def signals(config: Config) -> tuple[Signal, ...]:
    """All signals, each over the window of evidence."""
    return (*_network(config), *_storage(config), *_cpu(config))


def recorded(config: Config) -> tuple[Record, ...]:
    """Rates that signals share with contradictions and shortages, so that each counter is read once."""
    rate, window, of_target = config.rate, config.window, config.by("instance")
    blocked = f"({rate('whyidle_process_uninterruptible_samples_total', window)} > 0)"
    return (
        Record(
            blocked_samples(window),
            f"max {of_target} ({blocked} / {rate('whyidle_process_state_samples_total', window)})",
            why="The highest share of samples that found a process of a rank in an uninterruptible wait.",
        ),
        Record(
            major_faults(window),
            f"max {of_target} ({rate('whyidle_process_major_faults_total', window)})",
            why="Page faults that waited for storage, of the process that has most.",
        ),
        Record(
            queued_ranks(window),
            f"{rate('whyidle_rank_cpu_queued_seconds_total', window)} >= {config.queued_share:g}",
            why="The share of time for which the training threads of ranks queued for a CPU, of those that did so for "
            "long.",
        ),
    )


def _network(config: Config) -> tuple[Signal, ...]:
    waiting = "How busy the link is while ranks wait for transfers."
    return (
        *(
            Signal(
                "network",
                f"{name}{suffix}",
                f'{link_use(config.window)}{{link="{name}"}}',
                link.full,
                waiting if suffix else "",
                of_node=True,
                of_waits=bool(suffix),
            )
            for name, link in links(config).items()
            for suffix in ("", "_in_waits")
        ),
        *(
            Signal("network", name, config.rate(metric, config.window, matchers), threshold)
            for name, metric, matchers, threshold in _network_rates(config)
        ),
        *_tcp(config),
        *_queues(config),
    )


def links(config: Config) -> dict[str, Link]:
    """The links of a node, by kind and direction."""
    line_rate = config.line_rate_share
    port, device = config.by("instance", "device", "port"), config.by("instance", "device")
    gpu = config.by("instance", "gpu")
    carries = f"max {port} ({config.series('whyidle_rdma_port_rate_bytes_per_second')})"
    speed = f"max {device} ({config.series('whyidle_nic_speed_bytes_per_second')})"
    nvlinks = f"max {gpu} ({config.series('whyidle_gpu_nvlink_rate_bytes_per_second')})"
    found: dict[str, Link] = {}
    for direction, short in (("transmit", "tx"), ("receive", "rx")):
        rdma = config.rate(f"whyidle_rdma_{direction}_bytes_total", config.window)
        nic = config.rate("whyidle_nic_bytes_total", config.window, f'direction="{direction}"')
        found[f"rdma_{direction}"] = Link(f"sum {port} ({rdma}) / {carries}", line_rate)
        found[f"nic_{direction}"] = Link(f"sum {device} ({nic}) / {speed}", line_rate)
        nvlink = config.rate("whyidle_gpu_nvlink_bytes_total", config.window, f'direction="{short}"')
        found[f"nvlink_{direction}"] = Link(f"sum {gpu} ({nvlink}) / {nvlinks}", config.nvlink_share)
    return found


def _network_rates(config: Config) -> tuple[tuple[str, str, str, float], ...]:
    """Rows of signal, counter, matchers, and the rate per second from which on it agrees."""
    lost, marked = config.discards_per_second, config.congestion_marks_per_second
    return (
        ("rdma_transmit_wait", "whyidle_rdma_transmit_wait_ticks_total", "", config.transmit_wait_ticks_per_second),
        ("rdma_discards", "whyidle_rdma_transmit_discards_total", "", lost),
        ("rdma_out_of_sequence", "whyidle_rdma_out_of_sequence_packets_total", "", lost),
        ("rdma_sequence_naks", "whyidle_rdma_sequence_naks_total", "", lost),
        ("rdma_retransmits", "whyidle_rdma_retransmitted_packets_total", "", lost),
        ("rdma_adaptive_retransmits", "whyidle_rdma_adaptive_retransmits_total", "", lost),
        ("rdma_ack_timeouts", "whyidle_rdma_ack_timeouts_total", "", config.stalls_per_second),
        ("rdma_link_recoveries", "whyidle_rdma_link_recoveries_total", "", config.stalls_per_second),
        ("rdma_link_downed", "whyidle_rdma_link_downed_total", "", config.stalls_per_second),
        ("rdma_congestion_notified", "whyidle_rdma_cnp_handled_total", "", marked),
        ("rdma_congestion_marked", "whyidle_rdma_ecn_marked_packets_total", "", marked),
        ("nic_pause_time", "whyidle_nic_pause_seconds_total", 'direction="receive"', config.pause_share),
        ("nic_pause_frames", "whyidle_nic_pause_frames_total", 'direction="receive"', config.pause_frames_per_second),
        ("nic_discards", "whyidle_nic_discards_total", "", lost),
        ("nic_carrier_changes", "whyidle_nic_carrier_changes_total", "", config.stalls_per_second),
        ("nic_allowance_exceeded", "whyidle_nic_allowance_exceeded_packets_total", "", lost),
        ("nic_pci_stalls", "whyidle_nic_pci_stalled_seconds_total", "", config.pause_share),
        ("tcp_congestion_marked", "whyidle_tcp_congestion_marks_total", "", marked),
    )


def _tcp(config: Config) -> tuple[Signal, ...]:
    """Retransmissions and timeouts, without those of attempts to connect: no transfer waits for them."""
    rate, window = config.rate, config.window
    connecting = rate("whyidle_tcp_syn_retransmits_total", window)
    again = f"{rate('whyidle_tcp_retransmits_total', window)} - {connecting}"
    sent = rate("whyidle_tcp_sent_segments_total", window)
    lost = config.discards_per_second
    return (
        Signal(
            "network",
            "tcp_timeouts",
            f"{rate('whyidle_tcp_timeouts_total', window)} - {connecting}",
            lost,
            "Timeouts of open connections only. An unanswered attempt to connect counts as a timeout too.",
        ),
        Signal("network", "tcp_retransmits", f"({again} > {lost:g}) / {sent}", config.tcp_retransmit_share),
    )


def _queues(config: Config) -> tuple[Signal, ...]:
    """The node's own traffic control: packets held back by a rate limit, and bytes that wait in queues."""
    backlog = config.series("whyidle_qdisc_backlog_bytes")
    return (
        Signal(
            "network",
            "qdisc_overlimits",
            config.rate("whyidle_qdisc_overlimits_total", config.window),
            config.shaped_packets_per_second,
            "A rate limit on an interface of the node. TCP adapts its rate, so packets may wait without being lost.",
        ),
        Signal(
            "network",
            "qdisc_backlog",
            f"avg_over_time({backlog}[{config.window}])",
            config.backlog_bytes,
        ),
    )


def _storage(config: Config) -> tuple[Signal, ...]:
    rate, window = config.rate, config.window
    return (
        *_pressure(config, "storage", "io", config.io_stalled_share),
        Signal(
            "storage",
            "disk_busy",
            _of_ranks(config, rate("whyidle_disk_io_seconds_total", window)),
            config.disk_busy_share,
            "Only disks with files of ranks, if these are known. Other processes may keep other disks busy.",
        ),
        Signal("storage", "nfs_latency", _latency(config, "nfs", "requests"), config.nfs_latency),
        Signal(
            "storage",
            "nfs_retransmissions",
            rate("whyidle_nfs_retransmissions_total", window),
            config.discards_per_second,
        ),
        Signal("storage", "nfs_timeouts", rate("whyidle_nfs_major_timeouts_total", window), config.stalls_per_second),
        Signal("storage", "lustre_latency", _latency(config, "lustre", "calls"), config.lustre_latency),
        Signal(
            "storage",
            "fuse_waiting",
            _of_ranks(config, f"avg_over_time({config.series('whyidle_fuse_waiting_requests')}[{window}])"),
            config.fuse_requests,
            "A process that waits for FUSE sleeps as if it waited for a socket. No other counter shows this wait.",
        ),
        Signal(
            "storage",
            "network_files",
            _network_files(config),
            config.open_network_files,
            "For file systems without counters: a rank that reads has files open on a network file system.",
        ),
        Signal(
            "storage",
            "blocked_workers",
            blocked_samples(window),
            config.blocked_worker_share,
            "How often processes were found in an uninterruptible wait, which is mostly a wait for storage.",
        ),
        Signal(
            "storage",
            "major_faults",
            major_faults(window),
            config.major_faults_per_second,
            "Reads through mmap, which are not system calls.",
        ),
    )


def _network_files(config: Config) -> str:
    by, read = config.by("instance", *RANK), "whyidle_process_syscall_read_bytes_total"
    files = f"avg_over_time({config.series('whyidle_filesystem_open_files')}[{config.window}])"
    reads = f"{config.rate(read, config.window)} >= {config.idle_bytes_per_second:g}"
    return f"(sum {by} ({files}) and {config.on('instance', *RANK)} {reads})"


def _of_ranks(config: Config, devices: str) -> str:
    """Limits disks or FUSE file systems to those on which ranks have files. Keeps all where that is not known."""
    known = config.series("whyidle_filesystem_rank_info")
    return (
        f"({devices} and {config.on('instance', 'device')} {known}\n"
        f"  or {devices} unless {config.on('instance')} {known})"
    )


def _pressure(config: Config, family: str, resource: str, threshold: float) -> tuple[Signal, Signal]:
    """Pressure (PSI) of the ranks' control groups, or of the whole node if the groups have no such counters."""
    matchers = f'resource="{resource}", kind="some"'
    group, node = "whyidle_cgroup_pressure_stalled_seconds_total", "whyidle_pressure_stalled_seconds_total"
    groups = config.rate(group, config.window, matchers)
    return (
        Signal(
            family,
            f"{resource}_pressure",
            f"({config.rate(node, config.window, matchers)}\n  unless {config.on('instance')} {groups})",
            threshold,
            "The pressure of the whole node, used only if the ranks' control groups do not report their own.",
        ),
        Signal(family, f"cgroup_{resource}_pressure", groups, threshold),
    )


def _latency(config: Config, what: str, unit: str) -> str:
    """Seconds per operation, where operations take a share of the time: a rare slow one delays nobody."""
    took = config.rate(f"whyidle_{what}_operation_seconds_total", config.window)
    return (
        f"({took} > {config.io_stalled_share:g})\n"
        f"  / {config.rate(f'whyidle_{what}_operation_{unit}_total', config.window)}"
    )


def _cpu(config: Config) -> tuple[Signal, ...]:
    rate, window = config.rate, config.window
    target = config.by("instance")
    idle_modes = rate("whyidle_cpu_seconds_total", window, 'mode=~"idle|iowait"')
    idle = f"sum {target} ({idle_modes})"
    return (
        *_pressure(config, "cpu", "cpu", config.cpu_stalled_share),
        Signal(
            "cpu",
            "throttled",
            f"{rate('whyidle_cgroup_cpu_throttled_periods_total', window)} / "
            f"{rate('whyidle_cgroup_cpu_periods_total', window)}",
            config.throttled_periods_share,
        ),
        Signal(
            "cpu",
            "cpus_busy",
            f"1 - {idle} / max {target} ({config.series('whyidle_cpu_online_cpus')})",
            config.cpu_busy_share,
        ),
        Signal("cpu", "workers_queued", _per_worker(config, "runqueue"), config.runqueue_share),
        Signal(
            "cpu",
            "workers_busy",
            _per_worker(config, "cpu"),
            config.worker_cpu_share,
            "Workers that compute all the time limit the training, even if other CPUs are idle.",
        ),
        Signal(
            "cpu",
            STOLEN,
            _stolen(config),
            config.stolen_share,
            "The steal of the CPUs that the ranks of a run may use. Ranks on bare metal have no such counter.",
        ),
        Signal("cpu", QUEUED, queued_ranks(window), config.queued_share),
    )


def _stolen(config: Config) -> str:
    by = config.by("instance", *RUN)
    stolen, asked = (
        f"sum {by} ({config.rate(f'whyidle_rank_cpu_{what}_seconds_total', config.window)})"
        for what in ("stolen", "asked")
    )
    return f"{stolen}\n  / {asked}"


def _per_worker(config: Config, what: str) -> str:
    rank = ("job", "instance", *RANK)
    counter = config.rate(f"whyidle_process_{what}_seconds_total", config.window, 'role="worker"')
    workers = f"({config.series('whyidle_process_workers')} > 0)"
    return f"sum {config.by(*rank)} ({counter}) / {config.on(*rank)} {workers}"
