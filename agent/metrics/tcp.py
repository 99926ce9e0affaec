"""The metrics of the collector `tcp`."""

from __future__ import annotations

from .metric import Metric
from .ranks import RANK

_NAMESPACE = ("namespace",)
MS = 1000


def _tcp(name: str, type_: str, unit: str, help_: str, source: str, per: int = 1) -> Metric:
    return Metric(f"whyidle_tcp_{name}", type_, unit, _NAMESPACE, help_, source, per=per)


NAMESPACE_INFO = Metric(
    "whyidle_tcp_namespace_info",
    "gauge",
    "info",
    (*_NAMESPACE, *RANK),
    "The network namespace that a rank lives in, to join on; always 1. The node's own namespace is called host. "
    "Any other namespace, such as that of a pod, has the name of its first rank.",
    "/proc/<pid>/net/dev",
)

COUNTED: tuple[Metric, ...] = (
    _tcp(
        "retransmits_total",
        "counter",
        "segments",
        "Segments sent again. If it grows next to the segments sent, the network loses packets.",
        "/proc/net/snmp Tcp RetransSegs",
    ),
    _tcp("sent_segments_total", "counter", "segments", "Segments sent.", "/proc/net/snmp Tcp OutSegs"),
    _tcp("received_segments_total", "counter", "segments", "Segments received.", "/proc/net/snmp Tcp InSegs"),
    _tcp(
        "receive_errors_total",
        "counter",
        "segments",
        "Segments received that were bad, for example with a wrong checksum.",
        "/proc/net/snmp Tcp InErrs",
    ),
    _tcp(
        "resets_sent_total",
        "counter",
        "segments",
        "Resets sent. If it grows, a process connects to a port without a listener, or dropped its connections.",
        "/proc/net/snmp Tcp OutRsts",
    ),
    _tcp(
        "connections_reset_total",
        "counter",
        "connections",
        "Established connections that ended with a reset, from either side.",
        "/proc/net/snmp Tcp EstabResets",
    ),
    _tcp(
        "connection_failures_total",
        "counter",
        "connections",
        "Connections that were attempted and never established.",
        "/proc/net/snmp Tcp AttemptFails",
    ),
    _tcp("connections", "gauge", "connections", "Connections established now.", "/proc/net/snmp Tcp CurrEstab"),
    _tcp(
        "timeouts_total",
        "counter",
        "timeouts",
        "Retransmission timeouts. Each stalls its connection for 0.2 s or more. Segments "
        "that are sent again because acknowledgements request it do not count.",
        "/proc/net/netstat TcpExt TCPTimeouts",
    ),
    _tcp(
        "syn_retransmits_total",
        "counter",
        "segments",
        "Attempts to connect that were repeated because there was no answer.",
        "/proc/net/netstat TcpExt TCPSynRetrans",
    ),
    _tcp(
        "listen_overflows_total",
        "counter",
        "connections",
        "Connections that came while the listener's queue was full. If it grows when a job starts, its store or its "
        "rendezvous is too slow.",
        "/proc/net/netstat TcpExt ListenOverflows",
    ),
    _tcp(
        "listen_drops_total",
        "counter",
        "connections",
        "Connections to a listener that were dropped for any reason, a full queue included.",
        "/proc/net/netstat TcpExt ListenDrops",
    ),
    _tcp(
        "zero_windows_total",
        "counter",
        "windows",
        "How often a receive window was closed. If it grows, a process of this node does not read fast enough.",
        "/proc/net/netstat TcpExt TCPToZeroWindowAdv",
    ),
    _tcp(
        "receive_queue_drops_total",
        "counter",
        "segments",
        "Segments dropped because the receiving socket's memory was used up.",
        "/proc/net/netstat TcpExt TCPRcvQDrop",
    ),
    _tcp(
        "backlog_drops_total",
        "counter",
        "segments",
        "Segments dropped because the receiving process held its socket too long.",
        "/proc/net/netstat TcpExt TCPBacklogDrop",
    ),
    _tcp(
        "memory_pressure_seconds_total",
        "counter",
        "seconds",
        "How long the node was short of memory for TCP, which shrinks every window.",
        "/proc/net/netstat TcpExt TCPMemoryPressuresChrono",
        per=MS,
    ),
    _tcp(
        "congestion_marks_total",
        "counter",
        "packets",
        "IP packets received with a congestion mark from a switch.",
        "/proc/net/netstat IpExt InCEPkts",
    ),
)
"""The source is the file, the protocol's line and the column. If the kernel lacks the column, the series is absent."""

METRICS: tuple[Metric, ...] = (*COUNTED, NAMESPACE_INFO)
