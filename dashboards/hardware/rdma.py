"""The RDMA ports of a node: InfiniBand, RoCE, EFA."""

from __future__ import annotations

from ..selection import each, grows, listed, series
from ..vocabulary import Column, Panel, Section, line, table, trend
from ..vocabulary import section as _section

PORT = "device, port"
NAMED = "{{device}}/{{port}}"
DEVICE = "{{device}}"
NO_PORT = "No RDMA port on this node, or it does not count this"
SOME = 2
"""The most ports per counter in a panel with several counters."""

RETRANSMITS = {
    "whyidle_rdma_ack_timeouts_total": "acknowledgement timeouts",
    "whyidle_rdma_out_of_sequence_packets_total": "out of sequence",
    "whyidle_rdma_sequence_naks_total": "sequence NAKs",
    "whyidle_rdma_implied_naks_total": "implied NAKs",
    "whyidle_rdma_duplicate_requests_total": "duplicate requests",
    "whyidle_rdma_retransmitted_packets_total": "packets sent again",
    "whyidle_rdma_adaptive_retransmits_total": "adaptive retransmits",
    "whyidle_rdma_adaptive_retransmit_timeouts_total": "adaptive timeouts",
    "whyidle_rdma_slow_restarts_total": "slow restarts",
    "whyidle_rdma_slow_restart_cnps_total": "slow restart CNPs",
    "whyidle_rdma_slow_restart_transitions_total": "slow restart transitions",
}
CONGESTION = {
    "whyidle_rdma_cnp_sent_total": "notifications sent",
    "whyidle_rdma_cnp_handled_total": "notifications obeyed",
    "whyidle_rdma_cnp_ignored_total": "notifications ignored",
    "whyidle_rdma_ecn_marked_packets_total": "marked packets",
}
RECEIVERS = {
    "whyidle_rdma_rnr_naks_received_total": "peer not ready",
    "whyidle_rdma_rnr_naks_sent_total": "not ready here",
    "whyidle_rdma_out_of_buffer_packets_total": "out of buffer",
    "whyidle_rdma_receive_discards_total": "received and thrown away",
    "whyidle_rdma_transmit_discards_total": "discarded before sending",
}
LINK_ERRORS = {
    "whyidle_rdma_receive_errors_total": "receive errors",
    "whyidle_rdma_symbol_errors_total": "symbol errors",
    "whyidle_rdma_link_recoveries_total": "link recoveries",
    "whyidle_rdma_link_downed_total": "link went down",
}
BROKEN = {
    "whyidle_rdma_retries_exceeded_total": "retries exceeded",
    "whyidle_rdma_unresponsive_remotes_total": "peer did not answer",
    "whyidle_rdma_impaired_remotes_total": "peer impaired",
}
PACKETS = {
    f"whyidle_rdma_{kind}{way}_packets_total": f"{way} {kind.strip('_')}".strip()
    for kind in ("", "unicast_", "multicast_")
    for way in ("receive", "transmit")
}


def section() -> Section:
    return _section(
        "RDMA ports: InfiniBand, RoCE, EFA",
        line(9, _bytes(), _waits(), _packets()),
        line(9, _congestion(), _retransmits(), _receivers()),
        line(9, _link_errors(), _failed(), _requests()),
        line(9, _ports()),
        line(9, _devices(), _blind()),
        collapsed=True,
    )


def _bytes() -> Panel:
    return trend(
        "Bytes by RDMA",
        "Bytes per second, headers included, by port and direction, and the payload by operation where the adapter "
        "counts it (EFA).",
        grows("whyidle_rdma_receive_bytes_total", PORT, NAMED + " received", most=4),
        grows("whyidle_rdma_transmit_bytes_total", PORT, NAMED + " sent", most=4),
        grows("whyidle_rdma_retransmitted_bytes_total", PORT, NAMED + " sent again", most=SOME),
        grows("whyidle_rdma_operation_bytes_total", "operation", "{{operation}}", most=SOME),
        unit="Bps",
        width=8,
        nothing=NO_PORT,
    )


def _waits() -> Panel:
    return trend(
        "Waits for credits",
        "Ticks per second in which a port had data to send and no credit to send it. A tick's length depends on the "
        "adapter, so compare ports with each other, and the present with the past. Growth means congestion further "
        "along the path.",
        grows("whyidle_rdma_transmit_wait_ticks_total", PORT, NAMED, most=16),
        unit="short",
        width=8,
        nothing=NO_PORT,
    )


def _packets() -> Panel:
    return trend(
        "Packets by RDMA",
        "Packets per second of all ports. Few bytes per packet mean many small messages.",
        *each(PACKETS),
        unit="pps",
        width=8,
        nothing=NO_PORT,
    )


def _congestion() -> Panel:
    return trend(
        "Congestion marks and notifications",
        "Per second, by device. Sent: there is congestion on the way to this node. Obeyed: there is congestion "
        "on the way from it. Ignored: congestion control is off. Marked: packets that a switch marked.",
        *each(CONGESTION, "device", DEVICE, most=SOME),
        unit="pps",
        nothing=NO_PORT,
        width=8,
    )


def _retransmits() -> Panel:
    return trend(
        "Packets lost and sent again",
        "Per second, all ports. Acknowledgement timeouts stall a queue pair for as long as the timeout is, often "
        "seconds: a few are enough to make a network slow. The other events mean that packets were lost or reordered.",
        *each(RETRANSMITS),
        unit="pps",
        nothing=NO_PORT,
        width=8,
    )


def _receivers() -> Panel:
    return trend(
        "Discards, and receivers that were not ready",
        "Per second, all ports. Not ready or out of buffer means that a process on either side posts its "
        "buffers too slowly. Discards before sending mean that the port is congested or down.",
        *each(RECEIVERS),
        unit="pps",
        nothing=NO_PORT,
        width=8,
    )


def _link_errors() -> Panel:
    return trend(
        "Errors of links",
        "Per second, by device, and rare ones by kind. Steady growth points to a cable, a transceiver or a switch "
        "port; traffic stops while a link recovers.",
        *each(LINK_ERRORS, "device", DEVICE, most=SOME),
        grows("whyidle_rdma_port_errors_total", "error", "{{error}}", most=SOME),
        unit="ops",
        width=8,
        nothing=NO_PORT,
    )


def _failed() -> Panel:
    return trend(
        "Operations and connections that failed",
        "Failures per second, over all ports: operations that this node requested, operations that peers "
        "requested, and errors of the device; queue pairs that gave up after their last retry, and peers that did "
        "not answer. Each of these usually ends the job.",
        grows("whyidle_rdma_requester_errors_total", "error", "asked: {{error}}", most=SOME),
        grows("whyidle_rdma_responder_errors_total", "error", "answered: {{error}}", most=SOME),
        grows("whyidle_rdma_device_errors_total", "error", "device: {{error}}", most=SOME),
        *each(BROKEN),
        unit="ops",
        width=8,
        nothing="No operation failed, or no adapter counts it",
    )


def _requests() -> Panel:
    return trend(
        "RDMA requests",
        "Requests per second by operation, to peers and from them, all ports.",
        grows("whyidle_rdma_requests_sent_total", "operation", "sent {{operation}}", most=8),
        grows("whyidle_rdma_requests_received_total", "operation", "received {{operation}}", most=8),
        unit="ops",
        width=8,
        nothing=NO_PORT,
    )


def _ports() -> Panel:
    labels = "device, port, link_layer, netdev, width, generation"
    state = {
        "whyidle_rdma_port_up": "Carries data",
        "whyidle_rdma_port_state": "State (4 is active)",
        "whyidle_rdma_port_physical_state": "Physical state (5 is up)",
    }
    return table(
        "Ports",
        "Which RDMA ports the node has, their speed, and whether they are up. A port that is slower than the "
        "others is degraded. A port without a cable is always down. When a port goes down, the jobs that use it fail.",
        listed(f"max by ({labels}) ({series('whyidle_rdma_port_info')})"),
        listed(f"max by ({PORT}) ({series('whyidle_rdma_port_rate_bytes_per_second')})"),
        *(listed(f"max by ({PORT}) ({series(metric)})") for metric in state),
        columns=[
            Column("device", "Device"),
            Column("port", "Port", width=60),
            Column("link_layer", "Layer"),
            Column("netdev", "Interface"),
            Column("width", "Width", width=70),
            Column("generation", "Generation", width=100),
            Column("B", "Line rate", "Bps"),
            *(
                Column(letter, title, "bool" if letter == "C" else "short")
                for letter, title in zip("CDE", state.values(), strict=True)
            ),
        ],
        nothing=NO_PORT,
    )


def _devices() -> Panel:
    names = {"hca_type": "Type", "board_id": "Board", "fw_ver": "Firmware", "driver": "Driver", "pci_bus_id": "PCI"}
    return table(
        "RDMA devices",
        "Which adapters the node has. Nodes of a run should have the same firmware.",
        listed(series("whyidle_rdma_info")),
        columns=[
            Column("device", "Device"),
            *(Column(label, title) for label, title in names.items()),
            Column("node_guid", "GUID"),
        ],
        width=14,
        nothing=NO_PORT,
    )


def _blind() -> Panel:
    files = {
        "whyidle_rdma_unknown_file_info": "unknown: please report it",
        "whyidle_rdma_saturated_info": "at its ceiling: reset it with perfquery -R",
    }
    said = (
        f'label_replace(group by (device, port, file) ({series(metric)}), "why", "{why}", "", "")'
        for metric, why in files.items()
    )
    return table(
        "Counters of adapters that are not read",
        "Counter files that whyidle does not know, at most 20 per port, and counters that have reached their "
        "maximum and no longer count: their series are absent until somebody resets them.",
        listed(" or ".join(said)),
        columns=[
            Column("device", "Device"),
            Column("port", "Port", width=60),
            Column("file", "File"),
            Column("why", "Why"),
        ],
        width=10,
        nothing="All counters are read",
    )
