"""What is wrong with a node's hardware and file systems, as one list."""

from __future__ import annotations

from dataclasses import dataclass

from ..selection import HERE, grows, series
from ..vocabulary import Column, Panel, Section, line, now, table, trend
from ..vocabulary import section as _section

LISTED = 40
"""The most faults in the table."""
KNOWN = "last_seconds"
"""The ending of series that alerts record: when a link was last up, or a file system last writable."""


@dataclass(frozen=True)
class Fault:
    """``what`` is wrong, and ``where``: texts in which $1 stands for the value of the labels ``named`` and ``at``.

    ``expr`` has a sample per fault. Its value is how often the fault happened, and 1 for a state that lasts.
    """

    what: str
    where: str
    expr: str
    at: str = ""
    named: str = ""

    def told(self) -> str:
        said = f'label_replace({self.expr}, "what", "{self.what}", "{self.named}", "(.*)")'
        return f'label_replace({said}, "where", "{self.where}", "{self.at}", "(.*)")'


def _grown(metric: str, by: str, matchers: str = "") -> str:
    """The increase in the time range of a counter that is always present."""
    return f"(sum by ({by}) (increase({series(metric, matchers)}[$__range])) > 0.5)"


def _began(metric: str, by: str) -> str:
    """The increase in the time range of a counter that is absent before its first event.

    A series that began in the time range counts 1 more: `increase` does not see its first event.
    """
    events = series(metric)
    began = f"group by ({by}) ({events} unless {events} offset $__range)"
    return f"(sum by ({by}) (increase({events}[$__range])) + ({began} or 0 * group by ({by}) ({events})) > 0.5)"


def _down(up: str, known: str, by: str) -> str:
    """Links that are down and were up before: a port that never had a cable is not a fault."""
    return f"(group by ({by}) ({series(up)} == 0 and on (instance, {by}) {known}:{up}:{KNOWN}{{{HERE}}}))"


def _faults() -> tuple[Fault, ...]:
    memory = 'kind="uncorrected", since="volatile"'
    readonly = series("whyidle_filesystem_readonly")
    writable = f"mount:whyidle_filesystem_writable:{KNOWN}{{{HERE}}}"
    lanes, most = series("whyidle_gpu_pcie_link_width_lanes"), series("whyidle_gpu_pcie_link_width_max_lanes")
    return (
        Fault("GPU lost", "GPU $1", f"(max by (gpu) ({series('whyidle_gpu_lost')}) == 1)", "gpu"),
        Fault("XID $1", "GPU $1", _began("whyidle_gpu_xid_events_total", "gpu, xid"), "gpu", "xid"),
        Fault("uncorrected memory error", "GPU $1", _grown("whyidle_gpu_ecc_errors_total", "gpu", memory), "gpu"),
        Fault("row remap failed", "GPU $1", f"(max by (gpu) ({series('whyidle_gpu_row_remap_failure')}) == 1)", "gpu"),
        Fault("PCIe link with fewer lanes", "GPU $1", f"(group by (gpu) ({lanes} < {most}))", "gpu"),
        Fault("RDMA port down", "$1", _down("whyidle_rdma_port_up", "port", "device, port"), "device"),
        Fault("RDMA link went down", "$1", _grown("whyidle_rdma_link_downed_total", "device"), "device"),
        Fault("RDMA retries exceeded", "$1", _grown("whyidle_rdma_retries_exceeded_total", "device"), "device"),
        Fault("interface down", "$1", _down("whyidle_nic_up", "device", "device"), "device"),
        Fault(
            "file system turned read-only",
            "$1",
            f"(group by (mount) ({readonly} == 1 and on (instance, mount) {writable}))",
            "mount",
        ),
        Fault("process killed, memory ran out", "node", _grown("whyidle_memory_oom_kills_total", "instance")),
        Fault(
            "process killed at the memory limit",
            "$1",
            _grown("whyidle_cgroup_memory_events_total", "cgroup", 'event="oom_kill"'),
            "cgroup",
        ),
    )


def faults() -> str:
    """One sample per fault of the time range, with the labels ``what`` and ``where``."""
    return "max by (what, where) (" + " or ".join(fault.told() for fault in _faults()) + ")"


def section() -> Section:
    return _section("What is wrong", line(8, _table(), _over_time()))


def _table() -> Panel:
    return table(
        "Faults in the time range",
        "What went wrong on this node, where, and how often; a state that lasts counts once. The number of an "
        "XID says what to do: see docs/xids.md of whyidle.",
        now(f"topk({LISTED}, {faults()})"),
        columns=[
            Column("what", "What", width=260),
            Column("where", "Where"),
            Column("Value", "How often", "short", decimals=0, width=100),
        ],
        sort="How often",
        width=12,
        nothing="Nothing is wrong",
    )


def _over_time() -> Panel:
    by = "gpu, xid"
    return trend(
        "Faults over time",
        "Events per second: XIDs by GPU, uncorrected memory errors, links that went down, and processes that "
        "were killed because memory ran out. Compare the time of a peak with the panels above.",
        grows("whyidle_gpu_xid_events_total", by, "GPU {{gpu}} XID {{xid}}", most=6),
        grows("whyidle_gpu_faults_total", "instance", "any XID"),
        grows(
            "whyidle_gpu_ecc_errors_total",
            "instance",
            "uncorrected memory error",
            'kind="uncorrected", since="volatile"',
        ),
        grows("whyidle_rdma_link_downed_total", "instance", "RDMA link went down"),
        grows("whyidle_nic_carrier_changes_total", "instance", "interface came or went"),
        grows("whyidle_memory_oom_kills_total", "instance", "process killed, memory ran out"),
        unit="ops",
        width=12,
    )
