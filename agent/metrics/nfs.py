"""The metrics of the collector `nfs`."""

from __future__ import annotations

from .metric import Metric

MS = 1000
_MOUNT = ("mount",)
_OPERATION = ("mount", "operation")

INFO = Metric(
    "whyidle_nfs_info",
    "gauge",
    "info",
    ("mount", "server", "export", "version", "protocol", "device", "adapter"),
    "An NFS file system, identified by its first mount. Other mounts of the same file system share its "
    "counters and are left out. The label device is its number, as mountinfo and stat show it, and adapter is the "
    "network interface over which the node sends to the server, if it is known. Always 1.",
    "1/mountstats, opts; 1/mountinfo; 1/net/{route,ipv6_route}",
)


def _bytes(name: str, text: str) -> Metric:
    return Metric(f"whyidle_nfs_{name}_bytes_total", "counter", "bytes", _MOUNT, text, "1/mountstats, bytes")


BYTES: tuple[Metric, ...] = (
    _bytes("read", "Bytes that processes read through the page cache, whether they were in the cache or not."),
    _bytes("written", "Bytes that processes wrote into the page cache."),
    _bytes("direct_read", "Bytes that processes read with O_DIRECT."),
    _bytes("direct_written", "Bytes that processes wrote with O_DIRECT."),
    _bytes("server_read", "Bytes of files that the client received from the server."),
    _bytes("server_written", "Bytes of files that the client sent to the server."),
)
"""In the order of the line `bytes:` of mountstats."""


def _operation(field: str, name: str, unit: str, text: str) -> Metric:
    source = f"1/mountstats, per-op, {field}"
    per = MS if unit == "seconds" else 1
    return Metric(f"whyidle_nfs_operation_{name}_total", "counter", unit, _OPERATION, text, source, per=per)


OPERATIONS: dict[str, Metric] = {
    "requests": _operation(
        "requests",
        "requests",
        "requests",
        "Requests to the server, by operation. Operations that are rare, such as lock and rename, are in other.",
    ),
    "errors": _operation("errors", "errors", "errors", "Requests that the server answered with an error."),
    "queue_ms": _operation(
        "queue_ms",
        "queue_seconds",
        "seconds",
        "Time in which requests waited to be sent: too few slots or connections, or a full network.",
    ),
    "rtt_ms": _operation(
        "rtt_ms",
        "rtt_seconds",
        "seconds",
        "Time from sending requests to the server's answers: the network and the server. Divide by the requests "
        "to get the latency.",
    ),
    "execute_ms": _operation(
        "execute_ms", "seconds", "seconds", "Total time of requests, including their queueing in this client."
    ),
}


def _sum(name: str, unit: str, text: str, source: str, kind: str = "counter") -> Metric:
    return Metric(f"whyidle_nfs_{name}", kind, unit, _MOUNT, text, f"1/mountstats, {source}")


RETRANSMISSIONS = _sum(
    "retransmissions_total",
    "requests",
    "Requests that had to be sent again: the server or the network lost them, or the connection broke.",
    "per-op, transmissions",
)
TIMEOUTS = _sum(
    "major_timeouts_total",
    "timeouts",
    "Requests for which all retries timed out, so the server does not answer. A hard mount then starts again.",
    "per-op, major_timeouts",
)
TRANSPORTS = _sum("transports", "connections", "Connections to the server (nconnect).", "xprt", "gauge")
TRANSPORT: dict[str, Metric] = {
    "connects": _sum(
        "connects_total", "connects", "Times that a connection was made. It grows when connections break.", "xprt"
    ),
    "sends": _sum("transport_sends_total", "requests", "Requests sent over the connections of the mount.", "xprt"),
    "receives": _sum(
        "transport_receives_total", "answers", "Answers received over the connections of the mount.", "xprt"
    ),
    "bad_xids": _sum(
        "bad_xids_total",
        "answers",
        "Answers to an unknown request, such as a late answer to a request that was sent again.",
        "xprt",
    ),
    "backlog": _sum(
        "backlog_requests_total",
        "requests",
        "Requests that wait for a slot, counted at each send. Divide by the sends to get their average number.",
        "xprt",
    ),
    "pending": _sum(
        "pending_requests_total",
        "requests",
        "Requests that wait for an answer, counted at each send. Divide by the sends to get their average number.",
        "xprt",
    ),
}
IDLE = _sum(
    "transport_idle_seconds", "seconds", "Time since the last request over any of the connections.", "xprt", "gauge"
)

METRICS: tuple[Metric, ...] = (
    INFO,
    *BYTES,
    *OPERATIONS.values(),
    RETRANSMISSIONS,
    TIMEOUTS,
    TRANSPORTS,
    *TRANSPORT.values(),
    IDLE,
)
