"""The interfaces of a node, and TCP."""

from __future__ import annotations

from ..selection import each, grows, level, listed, series
from ..vocabulary import Column, Panel, Section, line, table, trend
from ..vocabulary import section as _section

INTERFACE = "{{device}}"
SOME = 4
"""The most interfaces per counter in a panel with two counters."""

TCP_TROUBLE = {
    "whyidle_tcp_timeouts_total": "timeouts",
    "whyidle_tcp_zero_windows_total": "windows closed",
    "whyidle_tcp_receive_queue_drops_total": "receive queue drops",
    "whyidle_tcp_backlog_drops_total": "backlog drops",
    "whyidle_tcp_receive_errors_total": "receive errors",
    "whyidle_tcp_congestion_marks_total": "congestion marks",
}
TCP_CONNECTIONS = {
    "whyidle_tcp_syn_retransmits_total": "SYN again",
    "whyidle_tcp_connection_failures_total": "failed",
    "whyidle_tcp_connections_reset_total": "reset",
    "whyidle_tcp_resets_sent_total": "resets sent",
    "whyidle_tcp_listen_overflows_total": "listener full",
    "whyidle_tcp_listen_drops_total": "listener dropped",
}
INTERFACE_LOSS = {
    "whyidle_nic_drops_total": "drops",
    "whyidle_nic_errors_total": "errors",
    "whyidle_nic_faults_total": "faults",
    "whyidle_nic_missed_packets_total": "missed",
    "whyidle_nic_out_of_buffer_total": "out of buffer",
    "whyidle_nic_discards_total": "discards",
    "whyidle_nic_priority_discards_total": "discards by priority",
    "whyidle_nic_wire_errors_total": "wire errors",
}
HOST_SIDE = {
    "whyidle_nic_pci_overflow_packets_total": "PCIe overflow",
    "whyidle_nic_pci_errors_total": "PCIe errors",
    "whyidle_nic_pause_storms_total": "pause storms",
}
BOTH = "device, direction"


def section() -> Section:
    return _section(
        "Network interfaces and TCP",
        line(9, _bytes(), _packets(), _stopped()),
        line(9, _loss(), _host_side(), _marks()),
        line(9, _tcp_trouble(), _connections(), _segments()),
        line(9, _held_back(), _backlog()),
        line(9, _identity(), _namespaces()),
        collapsed=True,
    )


def _bytes() -> Panel:
    return trend(
        "Bytes of interfaces",
        "Bytes per second by direction: in the kernel's network stack, on the wire (RDMA included), and inside "
        "the network namespaces of ranks.",
        grows("whyidle_nic_bytes_total", BOTH, "{{device}} {{direction}}", most=SOME),
        grows("whyidle_nic_wire_bytes_total", BOTH, "{{device}} {{direction}} on the wire", most=3),
        grows("whyidle_nic_namespace_bytes_total", "namespace, direction", "{{namespace}} {{direction}}", most=2),
        unit="Bps",
        width=8,
    )


def _packets() -> Panel:
    return trend(
        "Packets of interfaces",
        "Packets per second by interface and direction.",
        grows("whyidle_nic_packets_total", BOTH, "{{device}} {{direction}}", most=16),
        unit="pps",
        width=8,
    )


def _stopped() -> Panel:
    labels = "device, direction, priority"
    return trend(
        "Time for which adapters and TCP were stopped",
        "Share of time in which pause frames from the network stopped an adapter (received), or its own pause frames "
        "stopped others (sent), by priority. Also the time in which PCIe delayed it, which means that the bottleneck "
        "is inside the node, and the time in which TCP had too little memory.",
        grows("whyidle_nic_pause_seconds_total", labels, "{{device}} {{direction}} {{priority}} paused", most=SOME),
        grows("whyidle_nic_pci_stalled_seconds_total", "device", INTERFACE + " PCIe", most=SOME),
        grows("whyidle_tcp_memory_pressure_seconds_total", "instance", "TCP short of memory"),
        unit="percentunit",
        width=8,
        nothing="No adapter reports this",
    )


def _loss() -> Panel:
    return trend(
        "Packets lost at interfaces",
        "Per second, by kind, for the interface that loses most. Drops and misses on receipt mean that the host does "
        "not keep up. If there are errors, check the cable, transceiver and switch port.",
        *each(INTERFACE_LOSS, "device", INTERFACE, most=1),
        unit="pps",
        width=8,
    )


def _host_side() -> Panel:
    return trend(
        "Pause frames, and the host behind the adapter",
        "Per second, by interface: pause frames by direction and priority, packets dropped because PCIe is slow, "
        "pause storms, and how often the link went up or down. A link that flaps has a bad cable or port.",
        grows(
            "whyidle_nic_pause_frames_total",
            "device, direction, priority",
            "{{device}} {{direction}} {{priority}} frames",
            most=3,
        ),
        *each(HOST_SIDE, "device", INTERFACE, most=1),
        grows("whyidle_nic_carrier_changes_total", "device", INTERFACE + " link changes", most=2),
        grows("whyidle_nic_namespace_drops_total", "namespace, device", "{{namespace}} {{device}} drops", most=1),
        unit="pps",
        width=8,
    )


def _marks() -> Panel:
    return trend(
        "Congestion marks, and cloud allowances exceeded",
        "Packets per second that came with a congestion mark, and that were queued or dropped because the instance "
        "used more than it is allowed.",
        grows("whyidle_nic_ecn_marked_packets_total", "device, by", "{{device}} marked by {{by}}", most=SOME),
        grows(
            "whyidle_nic_allowance_exceeded_packets_total",
            "device, allowance",
            "{{device}} beyond {{allowance}}",
            most=SOME,
        ),
        unit="pps",
        width=8,
        nothing="No adapter counts this",
    )


def _tcp_trouble() -> Panel:
    return trend(
        "TCP stalls",
        "Per second, all namespaces. A timeout stalls its connection for 0.2 s or more. Closed windows mean that a "
        "process of this node does not read fast enough.",
        *each(TCP_TROUBLE),
        unit="ops",
        width=8,
    )


def _connections() -> Panel:
    return trend(
        "TCP connections that failed",
        "Per second, all namespaces. Full listeners while a job starts mean that its store or its rendezvous is too "
        "slow.",
        *each(TCP_CONNECTIONS),
        unit="ops",
        width=8,
    )


def _segments() -> Panel:
    return trend(
        "TCP segments",
        "Segments per second by namespace.",
        grows("whyidle_tcp_sent_segments_total", "namespace", "{{namespace}} sent", most=8),
        grows("whyidle_tcp_received_segments_total", "namespace", "{{namespace}} received", most=8),
        unit="pps",
        width=8,
    )


def _held_back() -> Panel:
    return trend(
        "Packets that traffic control held back",
        "Packets per second that had to wait because a queueing discipline (tc) keeps a rate. If there are any "
        "while ranks wait for transfers, this rate is the limit, not the link.",
        grows("whyidle_qdisc_overlimits_total", "device, kind", "{{device}} {{kind}}", most=8),
        unit="pps",
        width=12,
        nothing="No interface with a queueing discipline",
    )


def _backlog() -> Panel:
    return trend(
        "Bytes queued by traffic control",
        "Bytes that wait in the queueing disciplines of each interface now. A queue that does not empty means a "
        "slow link or a rate limit.",
        level("whyidle_qdisc_backlog_bytes", "device, kind", "{{device}} {{kind}}", most=8),
        unit="bytes",
        width=12,
        nothing="No interface with a queueing discipline",
    )


def _identity() -> Panel:
    labels = "device, kind, driver, master, pci_bus_id, rdma"
    return table(
        "Interfaces",
        "What each interface is, whether its link is up, its speed, and the longest packet that it sends. All "
        "nodes of a run should have the same values.",
        listed(f"max by ({labels}) ({series('whyidle_nic_info')})"),
        listed(f"max by (device) ({series('whyidle_nic_up')})"),
        listed(f"max by (device) ({series('whyidle_nic_speed_bytes_per_second')})"),
        listed(f"max by (device) ({series('whyidle_nic_mtu_bytes')})"),
        columns=[
            Column("device", "Device"),
            Column("kind", "Kind", width=80),
            Column("driver", "Driver", width=100),
            Column("master", "Part of", width=80),
            Column("rdma", "RDMA device", width=110),
            Column("pci_bus_id", "PCI", width=120),
            Column("B", "Up", "bool", width=60),
            Column("C", "Line rate", "Bps", width=110),
            Column("D", "MTU", "bytes", width=90),
        ],
        width=15,
    )


def _namespaces() -> Panel:
    established = f"sum by (namespace) ({series('whyidle_tcp_connections')})"
    return table(
        "Network namespaces of ranks",
        "Which namespace each rank is in, and how many connections it has; host is the node's own.",
        listed(f"max by (namespace, owner, run, rank) ({series('whyidle_tcp_namespace_info')})"),
        listed(established),
        columns=[
            Column("namespace", "Namespace"),
            Column("owner", "Owner", width=90),
            Column("run", "Run", width=110),
            Column("rank", "Rank", width=60),
            Column("B", "Connections", "short", width=110),
        ],
        width=9,
    )
