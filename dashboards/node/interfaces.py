"""The interfaces of a node, and TCP."""

from __future__ import annotations

from ..vocabulary import Column, Panel, Section, line, now, query, section, steps, table, trend
from .selection import each, grows, level, rate, series, total

INTERFACE = "{{device}}"

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
    "whyidle_nic_pci_stalled_seconds_total": "PCIe stalled (s/s)",
    "whyidle_nic_pci_overflow_packets_total": "PCIe overflow",
    "whyidle_nic_pci_errors_total": "PCIe errors",
    "whyidle_nic_pause_storms_total": "pause storms",
}


def sections() -> list[Section]:
    return [
        section(
            "Network: interfaces and TCP",
            line(7, _interfaces(), _tcp_share()),
            line(7, _pauses(), _loss(), _tcp_trouble()),
        ),
        section(
            "Network: interfaces and TCP, details",
            line(6, _host_side(), _marks(), _allowances()),
            line(6, _interface_bytes(), _interface_packets(), _carrier()),
            line(6, _held_back(), _backlog()),
            line(6, _connections(), _segments(), _namespaces()),
            line(7, _identity()),
            collapsed=True,
        ),
    ]


def _interfaces() -> Panel:
    limit = f"max by (device) ({series('whyidle_nic_speed_bytes_per_second')})"
    return trend(
        "Traffic of interfaces, of the line rate",
        "What the kernel's network stack carries on each interface in a direction (stack), and what is on the wire, "
        "RDMA included (wire), as a share of the link's speed. gloo, NFS and object stores pass here.",
        *(
            query(
                f"{total('device, direction', rate(metric))} / on (device) group_left () {limit}",
                f"{{{{device}}}} {{{{direction}}}} {words}",
            )
            for metric, words in {"whyidle_nic_bytes_total": "stack", "whyidle_nic_wire_bytes_total": "wire"}.items()
        ),
        unit="percentunit",
        most=1,
        nothing="No interface tells its speed",
        thresholds=steps(0.8),
        dashed=True,
    )


def _tcp_share() -> Panel:
    again = total("namespace", rate("whyidle_tcp_retransmits_total"))
    sent = total("namespace", rate("whyidle_tcp_sent_segments_total"))
    return trend(
        "TCP segments sent again",
        "Share of all segments sent, by network namespace. From 1 % on, connections slow down a lot.",
        query(f"{again} / ({sent} > 0)", "{{namespace}}"),
        unit="percentunit",
        thresholds=steps(0.01),
        dashed=True,
    )


def _pauses() -> Panel:
    labels = "device, direction, priority"
    return trend(
        "Pause frames",
        "Frames per second, and share of time that was paused, by priority. Received ones stop this node: congestion "
        "in the network. Sent ones stop others: this node does not keep up. No frames, no line.",
        grows("whyidle_nic_pause_frames_total", labels, "{{device}} {{direction}} {{priority}} frames"),
        grows("whyidle_nic_pause_seconds_total", labels, "{{device}} {{direction}} {{priority}} time (s/s)"),
        unit="short",
        nothing="No pause frame was counted",
        width=8,
    )


def _loss() -> Panel:
    return trend(
        "Packets lost at interfaces",
        "Per second, by interface. Drops and misses on receipt: the host does not keep up. Errors: cable, transceiver "
        "or switch port.",
        *each(INTERFACE_LOSS, "device", INTERFACE),
        grows("whyidle_nic_namespace_drops_total", "namespace, device", "{{namespace}} {{device}} drops"),
        unit="pps",
        width=8,
    )


def _tcp_trouble() -> Panel:
    return trend(
        "TCP stalls",
        "Per second, all namespaces. A timeout stalls its connection for 0.2 s or more. Closed windows: a process of "
        "this node does not read fast enough.",
        *each(TCP_TROUBLE),
        grows("whyidle_tcp_memory_pressure_seconds_total", "instance", "memory pressure (s/s)"),
        unit="ops",
        width=8,
    )


def _host_side() -> Panel:
    return trend(
        "The host behind the adapter",
        "Per second, by interface: PCIe that held up the adapter, what it dropped for it, and pause storms. If they "
        "grow, the bottleneck is inside the node.",
        *each(HOST_SIDE, "device", INTERFACE),
        unit="short",
        width=8,
    )


def _marks() -> Panel:
    return trend(
        "Congestion marks at interfaces",
        "Packets per second that came with a congestion mark, set by the network or by the adapter itself.",
        grows("whyidle_nic_ecn_marked_packets_total", "device, by", "{{device}} {{by}}"),
        unit="pps",
        width=8,
    )


def _allowances() -> Panel:
    return trend(
        "Cloud allowances exceeded",
        "Packets per second that were queued or dropped because the instance used more than it is allowed.",
        grows("whyidle_nic_allowance_exceeded_packets_total", "device, allowance", "{{device}} {{allowance}}"),
        unit="pps",
        width=8,
    )


def _held_back() -> Panel:
    return trend(
        "Packets that traffic control held back",
        "Packets per second that had to wait because a queueing discipline (tc) keeps a rate. Any number while ranks "
        "wait for transfers: the limit is that rate, and not the link.",
        grows("whyidle_qdisc_overlimits_total", "device, kind", "{{device}} {{kind}}"),
        unit="pps",
        nothing="No interface with a queueing discipline",
    )


def _backlog() -> Panel:
    return trend(
        "Bytes queued by traffic control",
        "Bytes that wait in the queueing disciplines of each interface now. A queue that stands has a slow link or a "
        "rate limit behind it.",
        level("whyidle_qdisc_backlog_bytes", "device, kind", "{{device}} {{kind}}"),
        unit="bytes",
        nothing="No interface with a queueing discipline",
    )


def _interface_bytes() -> Panel:
    return trend(
        "Bytes in pods' own network namespaces",
        "Bytes per second on interfaces inside the network namespaces of ranks. Nothing where ranks use the node's.",
        grows("whyidle_nic_namespace_bytes_total", "namespace, direction", "{{namespace}} {{direction}}"),
        unit="Bps",
        width=8,
    )


def _interface_packets() -> Panel:
    return trend(
        "Packets of interfaces",
        "Packets per second by interface and direction.",
        grows("whyidle_nic_packets_total", "device, direction", "{{device}} {{direction}}"),
        unit="pps",
        width=8,
    )


def _carrier() -> Panel:
    return trend(
        "Links of interfaces",
        "Whether each interface is up, and how often per second its link came or went: one that flaps.",
        level("whyidle_nic_up", "device", INTERFACE + " up"),
        grows("whyidle_nic_carrier_changes_total", "device", INTERFACE + " changes"),
        unit="short",
        width=8,
    )


def _connections() -> Panel:
    return trend(
        "TCP connections",
        "Per second, all namespaces, and how many are established. Full listeners when a job starts: its store or its "
        "rendezvous is too slow.",
        *each(TCP_CONNECTIONS),
        query(f"sum({series('whyidle_tcp_connections')})", "established now"),
        unit="short",
        width=8,
    )


def _segments() -> Panel:
    return trend(
        "TCP segments",
        "Segments per second by namespace.",
        grows("whyidle_tcp_sent_segments_total", "namespace", "{{namespace}} sent"),
        grows("whyidle_tcp_received_segments_total", "namespace", "{{namespace}} received"),
        unit="pps",
        width=8,
    )


def _namespaces() -> Panel:
    return table(
        "Network namespaces of ranks",
        "Which namespace each rank lives in; host is the node's own.",
        now(series("whyidle_tcp_namespace_info")),
        columns=[
            Column("namespace", "Namespace"),
            Column("owner", "Owner"),
            Column("run", "Run"),
            Column("rank", "Rank"),
        ],
        width=8,
    )


def _identity() -> Panel:
    labels = "device, kind, driver, master, pci_bus_id, rdma"
    mtu = f"max by (device) ({series('whyidle_nic_mtu_bytes')})"
    return table(
        "Interfaces",
        "What each interface is, and the longest packet that it sends. Nodes of a run should have the same.",
        now(f"max by ({labels}) ({series('whyidle_nic_info')}) * on (device) group_left () {mtu}"),
        columns=[
            Column("device", "Device"),
            Column("kind", "Kind"),
            Column("driver", "Driver"),
            Column("master", "Part of"),
            Column("rdma", "RDMA device"),
            Column("pci_bus_id", "PCI"),
            Column("A", "MTU", "bytes"),
        ],
    )
