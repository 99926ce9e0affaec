"""The RDMA ports of a node."""

from __future__ import annotations

from ..vocabulary import Column, Panel, Section, line, now, query, section, steps, table, trend
from .selection import each, grows, levels, rate, series, total

PORT = "device, port"
NAMED = "{{device}}/{{port}}"
DEVICE = "{{device}}"
NO_PORT = "No RDMA port on this node, or it does not count this"

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


def sections() -> list[Section]:
    return [
        section(
            "Network: RDMA ports",
            line(8, _line_rate(), _waits()),
            line(7, _congestion(), _retransmits(), _receivers()),
        ),
        section(
            "Network: RDMA links, errors and identity",
            line(6, _port_bytes(), _packets(), _states()),
            line(6, _link_errors(), _port_errors(), _broken()),
            line(6, _failed(), _requests(), _operations()),
            line(7, _ports()),
            line(7, _devices(), _device_pods()),
            line(6, _unknown(), _unreadable()),
            collapsed=True,
        ),
    ]


def _line_rate() -> Panel:
    limit = f"max by (device, port) ({series('whyidle_rdma_port_rate_bytes_per_second')})"
    return trend(
        "Traffic of RDMA ports, of the line rate",
        "What each port carries in a direction, as a share of what its link can. Near 100 % the network is the limit, "
        "and a verdict of network is proven; far below, look at waits, congestion and retransmits, or elsewhere.",
        *(
            query(f"{total(PORT, rate(f'whyidle_rdma_{way}_bytes_total'))} / {limit}", f"{NAMED} {way}")
            for way in ("receive", "transmit")
        ),
        unit="percentunit",
        most=1,
        nothing=NO_PORT,
        thresholds=steps(0.8),
        dashed=True,
    )


def _waits() -> Panel:
    return trend(
        "Waits for credits",
        "Ticks per second in which a port had data to send and no credit to send it. A tick's length depends on the "
        "adapter: compare ports, and now with before. Growth is congestion further down the path.",
        grows("whyidle_rdma_transmit_wait_ticks_total", PORT, NAMED),
        unit="short",
        nothing=NO_PORT,
    )


def _congestion() -> Panel:
    return trend(
        "Congestion marks and notifications",
        "Per second, by device. Sent: congestion on the way to this node. Obeyed: on the way from it. Ignored: "
        "congestion control is off. Marked: packets that a switch marked.",
        *each(CONGESTION, "device", DEVICE),
        unit="pps",
        nothing=NO_PORT,
        width=8,
    )


def _retransmits() -> Panel:
    return trend(
        "Lost and sent again",
        "Per second, all ports. Acknowledgement timeouts stall a queue pair for as long as the timeout is, often "
        "seconds: a few are enough to make a network slow. The others say that packets were lost or reordered.",
        *each(RETRANSMITS),
        unit="pps",
        nothing=NO_PORT,
        width=8,
    )


def _receivers() -> Panel:
    return trend(
        "Discards, and receivers that were not ready",
        "Per second, all ports. Not ready or out of buffer: a process posts its buffers too slowly, there or here. "
        "Discards before sending: the port is congested or down.",
        *each(RECEIVERS),
        unit="pps",
        nothing=NO_PORT,
        width=8,
    )


def _port_bytes() -> Panel:
    return trend(
        "Bytes by RDMA",
        "Bytes per second, headers included, by port and direction.",
        grows("whyidle_rdma_receive_bytes_total", PORT, NAMED + " received"),
        grows("whyidle_rdma_transmit_bytes_total", PORT, NAMED + " sent"),
        grows("whyidle_rdma_retransmitted_bytes_total", PORT, NAMED + " sent again"),
        unit="Bps",
        width=8,
    )


def _packets() -> Panel:
    return trend(
        "Packets by RDMA",
        "Packets per second of all ports. Few bytes to a packet mean many small messages.",
        *each(
            {
                f"whyidle_rdma_{kind}{way}_packets_total": f"{way} {kind.strip('_')}".strip()
                for kind in ("", "unicast_", "multicast_")
                for way in ("receive", "transmit")
            }
        ),
        unit="pps",
        width=8,
    )


def _states() -> Panel:
    return trend(
        "Links",
        "Whether each port can carry data (1), its logical state (4 is active) and its physical one (5 is up). A port "
        "that never had a cable is 0 for ever; one that falls takes its jobs along.",
        *levels(
            {
                "whyidle_rdma_port_up": "up",
                "whyidle_rdma_port_state": "state",
                "whyidle_rdma_port_physical_state": "physical",
            },
            PORT,
            NAMED,
        ),
        unit="short",
        width=8,
    )


def _link_errors() -> Panel:
    return trend(
        "Errors of the link",
        "Per second, by device. Steady growth points to a cable, a transceiver or a switch port; traffic stands still "
        "while a link recovers.",
        *each(LINK_ERRORS, "device", DEVICE),
        unit="ops",
        width=8,
    )


def _port_errors() -> Panel:
    return trend(
        "Rare errors of ports",
        "Per second, by kind. A kind that has not occurred has no line.",
        grows("whyidle_rdma_port_errors_total", "error", "{{error}}"),
        unit="ops",
        width=8,
    )


def _broken() -> Panel:
    return trend(
        "Connections given up",
        "Per second, all ports: queue pairs that gave up after their last retry, and peers that did not answer. Each "
        "mostly ends the job.",
        *each(BROKEN),
        unit="ops",
        width=8,
    )


def _failed() -> Panel:
    return trend(
        "Operations that failed",
        "Per second, by kind: asked of peers, asked by peers, and of the device itself. A kind that has not occurred "
        "has no line.",
        grows("whyidle_rdma_requester_errors_total", "error", "asked: {{error}}"),
        grows("whyidle_rdma_responder_errors_total", "error", "answered: {{error}}"),
        grows("whyidle_rdma_device_errors_total", "error", "device: {{error}}"),
        unit="ops",
        width=8,
    )


def _requests() -> Panel:
    return trend(
        "Requests",
        "Requests per second by operation, to peers and from them, all ports.",
        grows("whyidle_rdma_requests_sent_total", "operation", "sent {{operation}}"),
        grows("whyidle_rdma_requests_received_total", "operation", "received {{operation}}"),
        unit="ops",
        width=8,
    )


def _operations() -> Panel:
    return trend(
        "Payload by operation",
        "Bytes per second by operation, where the adapter counts them (EFA).",
        grows("whyidle_rdma_operation_bytes_total", "operation", "{{operation}}"),
        unit="Bps",
        width=8,
    )


def _ports() -> Panel:
    labels = "device, port, link_layer, netdev, width, generation"
    identity = f"max by ({labels}) ({series('whyidle_rdma_port_info')})"
    limit = f"max by (device, port) ({series('whyidle_rdma_port_rate_bytes_per_second')})"
    return table(
        "Ports",
        "Which RDMA ports the node has and what they run at. One that is slower than its peers came up degraded.",
        now(f"{identity} * on (device, port) group_left () {limit}"),
        columns=[
            Column("device", "Device"),
            Column("port", "Port"),
            Column("link_layer", "Layer"),
            Column("netdev", "Interface"),
            Column("width", "Width"),
            Column("generation", "Generation"),
            Column("A", "Line rate", "Bps"),
        ],
    )


def _devices() -> Panel:
    return table(
        "RDMA devices",
        "Which adapters the node has. Nodes of a run should have the same firmware.",
        now(series("whyidle_rdma_info")),
        columns=[
            Column("device", "Device"),
            Column("hca_type", "Type"),
            Column("board_id", "Board"),
            Column("fw_ver", "Firmware"),
            Column("driver", "Driver"),
            Column("pci_bus_id", "PCI"),
            Column("node_guid", "GUID"),
        ],
        width=14,
    )


def _device_pods() -> Panel:
    return table(
        "Pods that were given adapters",
        "The containers that the kubelet gave other devices to, such as RDMA adapters.",
        now(series("whyidle_device_pod_info")),
        columns=[
            Column("resource", "Resource"),
            Column("device", "Device"),
            Column("namespace", "Namespace"),
            Column("pod", "Pod"),
            Column("container", "Container"),
        ],
        nothing="Not in Kubernetes, or none is given",
        width=10,
    )


def _unknown() -> Panel:
    return table(
        "Counters of adapters that nobody knows",
        "Files of counters whose meaning whyidle does not know: please report them. At most 20 are listed per port.",
        now(f"count by (device, port, file) ({series('whyidle_rdma_unknown_file_info')})"),
        columns=[Column("device", "Device"), Column("port", "Port"), Column("file", "File")],
        width=12,
    )


def _unreadable() -> Panel:
    return table(
        "Counters of adapters that stand at their ceiling",
        "They count no longer, and their series are absent until they are reset (perfquery -R).",
        now(f"count by (device, port, file) ({series('whyidle_rdma_saturated_info')})"),
        columns=[Column("device", "Device"), Column("port", "Port"), Column("file", "File")],
        width=12,
    )
