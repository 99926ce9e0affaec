"""TCP counters of the node and of network namespaces."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fake_node import nic
from hypothesis import given
from hypothesis import strategies as st
from support_exporter import node_exporter
from support_matrix import FAULTS, Anew, Series, check, read

from whyidle.agent.collector import Collector, Options
from whyidle.agent.collectors.tcp import create
from whyidle.agent.files import Roots, Unreadable
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.metrics.tcp import COUNTED
from whyidle.agent.parsers import snmp

EXPECTED = {
    "retransmits_total": 2936,
    "sent_segments_total": 7635805,
    "received_segments_total": 7819606,
    "receive_errors_total": 4,
    "resets_sent_total": 616,
    "connections_reset_total": 87,
    "connection_failures_total": 405,
    "connections": 213,
    "timeouts_total": 311,
    "syn_retransmits_total": 61,
    "listen_overflows_total": 21,
    "listen_drops_total": 23,
    "zero_windows_total": 50150,
    "receive_queue_drops_total": 9,
    "backlog_drops_total": 7,
    "memory_pressure_seconds_total": 1.5,
    "congestion_marks_total": 5003,
}


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    found = Roots(str(tmp_path / "proc"), str(tmp_path / "sys"), str(tmp_path / "root"))
    nic.build(found)
    return found


def collector(roots: Roots) -> Collector:
    return create(Options(LedgerStore("/nonexistent", 1), roots))


def test_every_counter_comes_from_its_column(roots: Roots) -> None:
    Path(roots.procfs, "net/snmp").write_text("")  # the reader's own namespace, which is not read
    series, errors = read(collector(roots))
    assert series == {(f"whyidle_tcp_{name}", ("host",)): value for name, value in EXPECTED.items()}
    assert len(EXPECTED) == len(COUNTED)
    assert not errors


def file_of(series: Series) -> str:
    return next(metric.source.split()[0].rpartition("/")[2] for metric in COUNTED if metric.name == series[0])


@pytest.mark.parametrize("fault", FAULTS)
def test_each_bad_file_affects_only_its_own_series(roots: Roots, fault: str) -> None:
    def make() -> Collector:
        return Anew(lambda: collector(roots)) if fault in ("missing", "EINVAL") else collector(roots)

    for file in ("snmp", "netstat"):
        path = Path(roots.procfs, "1/net", file)
        check(make, path, fault, lambda series, file=file: file_of(series) == file)


def test_kernels_may_have_fewer_or_other_columns(roots: Roots) -> None:
    path = Path(roots.procfs, "1/net/netstat")
    one = collector(roots)
    read(one)
    path.write_text("TcpExt: TCPTimeouts ListenDrops New\nTcpExt: 312 24 1\nNewExt: A B\nNewExt: 1 2\n")
    series, errors = read(one)
    assert not errors
    assert series["whyidle_tcp_timeouts_total", ("host",)] == 312
    assert series["whyidle_tcp_listen_drops_total", ("host",)] == 24
    assert len([key for key in series if file_of(key) == "netstat"]) == 2


def test_a_bad_value_affects_only_itself(roots: Roots) -> None:
    path = Path(roots.procfs, "1/net/snmp")
    path.write_text(path.read_text().replace(" 2936 ", " -2936 "))
    series, errors = read(collector(roots))
    assert len(series) == len(EXPECTED) - 1
    assert ("whyidle_tcp_retransmits_total", ("host",)) not in series
    assert [(error.file, error.reason) for error in errors] == [("net/snmp RetransSegs", "garbage")]


def test_a_node_without_tcp_is_absent(tmp_path: Path) -> None:
    assert read(collector(Roots(str(tmp_path), str(tmp_path), str(tmp_path)))) == ({}, {})


@pytest.mark.skipif(not shutil.which("prometheus-node-exporter"), reason="needs prometheus-node-exporter")
def test_agrees_with_node_exporter() -> None:
    """The values that only grow are between two answers of node_exporter."""
    with node_exporter("netstat") as theirs:
        before = theirs()
        ours, errors = read(create(Options(LedgerStore("/nonexistent", 1))))
        after = theirs()
    assert not errors
    compared = 0
    for metric in COUNTED:
        _, protocol, column = metric.source.split()
        key = (f"node_netstat_{protocol}_{column}", ())
        if key in after and metric.type == "counter":
            value = ours[metric.name, ("host",)]
            assert isinstance(value, int | float)
            assert before[key] <= value <= after[key]
            compared += 1
    assert compared >= 6


@given(st.binary(max_size=2000) | st.text("TcpEx: 0123\n").map(str.encode))
def test_garbage_raises_only_unreadable(data: bytes) -> None:
    try:
        for lines in snmp.protocols(data).values():
            for place in snmp.columns(lines.names).values():
                snmp.value(lines.values[place])
    except Unreadable:
        pass
