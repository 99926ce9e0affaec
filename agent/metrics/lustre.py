"""The metrics of the collector `lustre`."""

from __future__ import annotations

from .metric import Metric

MICROSECONDS = 1_000_000
_FS = ("filesystem",)
_OPERATION = ("filesystem", "operation")

INFO = Metric(
    "whyidle_lustre_info",
    "gauge",
    "info",
    ("filesystem", "name", "mount", "protocol", "adapter"),
    "A Lustre file system of this client; always 1. The label filesystem is its directory under llite, name is the "
    "name of the file system, and mount is where it is mounted, if that is known for certain. The label protocol is "
    "the type of the network to the server that is named first, such as tcp or o2ib (RDMA), and adapter is the network "
    "interface over which the node sends to it.",
    "llite/*; 1/mountinfo; 1/net/{route,ipv6_route}",
)
BYTES: dict[str, tuple[Metric, Metric]] = {
    f"{way}_bytes": (
        Metric(
            f"whyidle_lustre_{plural}_total",
            "counter",
            plural,
            _FS,
            f"Calls of processes that {did} data.",
            f"llite/*/stats, {way}_bytes",
        ),
        Metric(
            f"whyidle_lustre_{past}_bytes_total",
            "counter",
            "bytes",
            _FS,
            f"Bytes that processes {did}, the client's cache included.",
            f"llite/*/stats, {way}_bytes",
        ),
    )
    for way, plural, past, did in (("read", "reads", "read", "read"), ("write", "writes", "written", "wrote"))
}
CALLS = Metric(
    "whyidle_lustre_operation_calls_total",
    "counter",
    "calls",
    _OPERATION,
    "Calls of processes, by operation. Operations that are rare, such as link and rename, are in other.",
    "llite/*/stats, <operation>",
)
SECONDS = Metric(
    "whyidle_lustre_operation_seconds_total",
    "counter",
    "seconds",
    _OPERATION,
    "Time that processes spent in calls, by operation. Divide by the calls to get the latency. Since Lustre 2.13.",
    "llite/*/stats, <operation>",
    per=MICROSECONDS,
)
CONNECTIONS = Metric(
    "whyidle_lustre_connections",
    "gauge",
    "connections",
    ("filesystem", "state"),
    "Connections to object and metadata targets, by state. Any state other than full and idle means that a "
    "target does not "
    "answer, or that the client was evicted.",
    "{osc,mdc}/*/import",
)

METRICS: tuple[Metric, ...] = (
    INFO,
    *(metric for pair in BYTES.values() for metric in pair),
    CALLS,
    SECONDS,
    CONNECTIONS,
)
