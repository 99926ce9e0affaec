"""The network of a node, as its ranks use it: RDMA ports, interfaces and TCP in the same panels."""

from __future__ import annotations

from .. import traffic
from .. import variables as v
from ..selection import grows, highest, rate, series, total
from ..vocabulary import Panel, Section, line, query, steps, trend
from ..vocabulary import section as _section

LOST = (
    "whyidle_nic_drops_total",
    "whyidle_nic_errors_total",
    "whyidle_nic_missed_packets_total",
    "whyidle_nic_out_of_buffer_total",
    "whyidle_nic_discards_total",
    "whyidle_rdma_transmit_discards_total",
    "whyidle_rdma_receive_discards_total",
)
CONGESTED = (
    "whyidle_rdma_cnp_sent_total",
    "whyidle_rdma_cnp_handled_total",
    "whyidle_rdma_ecn_marked_packets_total",
    "whyidle_nic_ecn_marked_packets_total",
)
SENT_AGAIN = (
    "whyidle_rdma_out_of_sequence_packets_total",
    "whyidle_rdma_sequence_naks_total",
    "whyidle_rdma_retransmitted_packets_total",
    "whyidle_rdma_adaptive_retransmits_total",
)
NOT_READY = (
    "whyidle_rdma_rnr_naks_received_total",
    "whyidle_rdma_rnr_naks_sent_total",
    "whyidle_rdma_out_of_buffer_packets_total",
)
TROUBLE: dict[str, tuple[str, ...]] = {
    "congestion marks and notifications": CONGESTED,
    "lost and sent again": SENT_AGAIN,
    "RDMA acknowledgement timeouts": ("whyidle_rdma_ack_timeouts_total",),
    "receiver not ready": NOT_READY,
    "dropped, discarded or damaged": LOST,
    "pause frames": ("whyidle_nic_pause_frames_total",),
    "TCP timeouts": ("whyidle_tcp_timeouts_total",),
}
"""Legend of a line -> the counters that it sums."""


def section() -> Section:
    return _section(
        "Network, as the ranks use it",
        line(9, _line_rate(), _handed_over()),
        line(8, _trouble(), _tcp()),
        line(7, traffic.collide(v.NODE, "of this node")),
    )


def _line_rate() -> Panel:
    ports = f"max by (device, port) ({series('whyidle_rdma_port_rate_bytes_per_second')})"
    links = f"max by (device) ({series('whyidle_nic_speed_bytes_per_second')})"
    rdma = {
        way: f"{total('device, port', rate(f'whyidle_rdma_{way}_bytes_total'))} / {ports}"
        for way in ("receive", "transmit")
    }
    stack = f"{total('device, direction', rate('whyidle_nic_bytes_total'))} / on (device) group_left () {links}"
    return trend(
        "Traffic of links, as a share of the line rate",
        "What each RDMA port and each interface carries in one direction, as a share of its line rate; the "
        "busiest ones. Near 100 % the network is the limit, and a verdict of network is confirmed. If a link "
        "is far below, look at what slows it down. "
        "gloo, NFS and object stores pass through interfaces, NCCL through RDMA ports where there are any.",
        *(query(highest(expr, "device, port", 6), f"{{{{device}}}}/{{{{port}}}} {way}") for way, expr in rdma.items()),
        query(highest(stack, "device, direction", 6), "{{device}} {{direction}}"),
        unit="percentunit",
        most=1,
        nothing="No link tells its speed",
        thresholds=steps(0.8),
        dashed=True,
    )


def _handed_over() -> Panel:
    return trend(
        "Collectives: bytes handed over",
        "Bytes per second by operation, all ranks of the node. Compare with what the links carry: a ring all-reduce "
        "over n ranks sends 2 (n - 1) / n of them.",
        grows("whyidle_collective_bytes_total", "op", "{{op}}", most=8),
        unit="Bps",
        nothing="No rank of this node handed anything to a collective",
    )


def _trouble() -> Panel:
    return trend(
        "What slows the network",
        "Events per second of all RDMA ports, interfaces and connections. Congestion means that others use the "
        "fabric too. If packets are lost and sent again, or damaged, a cable or a switch port is bad. If receivers are "
        "not ready, a process posts its buffers too slowly. A few timeouts are enough, because each stalls its "
        "connection for seconds. Node hardware shows all of these by device.",
        *(
            query(" + ".join(f"(sum({rate(metric)}) or vector(0))" for metric in metrics), words)
            for words, metrics in TROUBLE.items()
        ),
        unit="pps",
    )


def _tcp() -> Panel:
    again = total("namespace", rate("whyidle_tcp_retransmits_total"))
    sent = total("namespace", rate("whyidle_tcp_sent_segments_total"))
    return trend(
        "TCP segments sent again",
        "Share of all segments sent, by network namespace. Above 1 %, connections become much slower.",
        query(highest(f"{again} / ({sent} > 0)", "namespace", 12), "{{namespace}}"),
        unit="percentunit",
        thresholds=steps(0.01),
        dashed=True,
    )
