"""The collector `rdma`: what the files of each vendor mean, and what a bad file costs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from fake_node import rdma as fake
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from support_matrix import CONTENTS, FAULTS, Series, check, files, read, spoilt

from whyidle.agent.collector import Options
from whyidle.agent.collectors.rdma import MOST_UNKNOWN, RdmaCollector, create
from whyidle.agent.exposition import Exposition
from whyidle.agent.files import REASONS, Roots, Unreadable
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.metrics import rdma
from whyidle.agent.metrics.rdma_errors import INNER_LIFE, NOT_EXPORTED
from whyidle.agent.reading import Absent, ReadError, Reading
from whyidle.linux import infiniband

DEADLINE_SECONDS = 240.0


def roots_in(path: Path) -> Roots:
    return Roots(str(path / "proc"), str(path / "sys"), str(path))


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return roots_in(tmp_path)


@pytest.fixture
def full(roots: Roots) -> Roots:
    fake.build(roots)
    return roots


@contextmanager
def collector(roots: Roots) -> Iterator[RdmaCollector]:
    made = create(Options(LedgerStore("/nonexistent", 1.0), roots))
    yield made
    made.close()


def look(roots: Roots) -> tuple[dict[Series, object], dict[ReadError, int]]:
    with collector(roots) as made:
        series, errors = read(made)
    return series, errors


def hca(name: str) -> fake.Hca:
    return next(one for one in fake.hcas() if one.name == name)


def build(roots: Roots, *names: str) -> list[Path]:
    values = count(1)
    return [fake.build_hca(roots, hca(name), values) for name in names]


def device_of(roots: Roots, name: str) -> Path:
    return Path(roots.sysfs, "class/infiniband", name)


@pytest.mark.parametrize(
    ("device", "file", "metric", "labels", "times"),
    [
        # InfiniBand's own counters: octets in units of four, waits in ticks.
        ("mlx5_0", "ports/1/counters/port_rcv_data", "receive_bytes_total", ("1", ""), 4),
        ("mlx5_0", "ports/1/counters/port_xmit_data", "transmit_bytes_total", ("1", ""), 4),
        ("mlx5_0", "ports/1/counters/port_xmit_wait", "transmit_wait_ticks_total", ("1",), 1),
        ("mlx5_0", "ports/1/counters/VL15_dropped", "port_errors_total", ("1", "vl15_dropped"), 1),
        ("mlx4_0", "ports/2/counters/symbol_error", "symbol_errors_total", ("2",), 1),
        # Counters of the vendors: bytes are bytes, and each fact has one name.
        ("mlx5_2", "ports/1/hw_counters/np_cnp_sent", "cnp_sent_total", ("1",), 1),
        ("bnxt_re0", "ports/1/hw_counters/tx_cnp_pkts", "cnp_sent_total", ("1",), 1),
        ("ionic_0", "ports/1/hw_counters/tx_rdma_cnp_pkts", "cnp_sent_total", ("1",), 1),
        ("irdma0", "ports/1/hw_counters/cnpSent", "cnp_sent_total", ("1",), 1),
        ("hfi1_0", "hw_counters/DcRcvFcn", "ecn_marked_packets_total", ("",), 1),
        ("rdmap16s27", "ports/1/hw_counters/rx_bytes", "receive_bytes_total", ("1", ""), 1),
        ("rdmap16s27", "ports/1/hw_counters/rdma_write_bytes", "operation_bytes_total", ("1", "write"), 1),
        ("rdmap16s27", "ports/1/hw_counters/retrans_bytes", "retransmitted_bytes_total", ("1",), 1),
        ("rdmap16s27", "hw_counters/cmds_err", "device_errors_total", ("", "command"), 1),
        ("bnxt_re0", "ports/1/hw_counters/tx_bytes", "transmit_bytes_total", ("1", ""), 1),
        ("bnxt_re0", "ports/1/hw_counters/to_retransmits", "ack_timeouts_total", ("1",), 1),
        ("mlx5_0", "ports/1/hw_counters/local_ack_timeout_err", "ack_timeouts_total", ("1",), 1),
        ("hfi1_0", "ports/1/hw_counters/RcTimeOut", "ack_timeouts_total", ("1",), 1),
        ("mlx4_0", "ports/2/hw_counters/sq_num_to", "ack_timeouts_total", ("2",), 1),
        ("irdma0", "ports/1/hw_counters/ip6OutOctets", "transmit_bytes_total", ("1", "ip6"), 1),
        ("ionic_0", "ports/1/hw_counters/rx_rdma_mcast_bytes", "receive_bytes_total", ("1", "multicast"), 1),
        ("irdma0", "ports/1/hw_counters/Rcvd Out of order packets", "out_of_sequence_packets_total", ("1",), 1),
        ("mlx5_3", "ports/1/hw_counters/req_rnr_retries_exceeded", "retries_exceeded_total", ("1", "rnr"), 1),
    ],
)
def test_a_file_means_the_same_whatever_its_vendor_calls_it(
    full: Roots, device: str, file: str, metric: str, labels: tuple[str, ...], times: int
) -> None:
    raw = int((device_of(full, device) / file).read_text())
    series, _ = look(full)
    assert series[f"whyidle_rdma_{metric}", (device, *labels)] == raw * times


def test_every_declared_metric_has_a_series_and_no_other_has(full: Roots, tmp_path: Path) -> None:
    series, _ = look(full)
    assert {name for name, _ in series} == {metric.name for metric in rdma.METRICS}
    names = [file.name for file in files(tmp_path / "sys/devices") if file.parent.name == "hw_counters"]
    known = rdma.HW_COUNTERS.keys() | NOT_EXPORTED
    assert {name for name in names if name not in known and not name.startswith(INNER_LIFE["hfi1"])} == {
        "rx_flux_capacitor"
    }
    assert not rdma.HW_COUNTERS.keys() & NOT_EXPORTED


def test_exports_identity_and_state_of_devices_and_ports(full: Roots) -> None:
    series, _ = look(full)
    info = {labels[0]: labels[1:] for name, labels in series if name == "whyidle_rdma_info"}
    assert info["mlx5_0"][:5] == ("mlx5_core", "0000:1b:00.0", "MT_0000000838", "28.39.1002", "MT4129")
    assert info["irdma0"][:5] == ("ice", "0000:c3:00.0", "", "1.54", "IRDMA")
    assert info["rdmap16s27"][:5] == ("efa", "0000:10:1b.0", "", "", "")
    assert info["rdmap16s27"][5]
    assert info["rxe0"][:5] == ("", "", "", "", "")
    port = {labels[:2]: labels[2:] for name, labels in series if name == "whyidle_rdma_port_info"}
    assert port["mlx5_1", "1"] == ("InfiniBand", "", "0x2c", "4X", "NDR")
    assert port["mlx5_2", "1"] == ("Ethernet", "eth2", "0x0", "4X", "NDR")
    assert port["mlx4_0", "2"] == ("InfiniBand", "ibp161s0d1", "0x4", "4X", "QDR")
    assert series["whyidle_rdma_port_rate_bytes_per_second", ("mlx5_0", "1")] == 400e9 / 8
    # A link that is down has no rate, whatever its driver reports.
    assert port["mlx5_4", "1"] == ("InfiniBand", "", "0xffff", "", "")
    assert ("whyidle_rdma_port_rate_bytes_per_second", ("mlx5_4", "1")) not in series
    assert series["whyidle_rdma_port_up", ("mlx5_4", "1")] == 0
    assert series["whyidle_rdma_port_state", ("mlx5_4", "1")] == 1
    assert series["whyidle_rdma_port_physical_state", ("mlx5_4", "1")] == 3


def test_the_driver_is_taken_from_uevent_where_there_is_no_link(roots: Roots) -> None:
    [device] = build(roots, "bnxt_re0")
    (device / "device/driver").unlink()
    assert ("bnxt_en", "0000:c1:00.0") in {
        labels[1:3] for name, labels in look(roots)[0] if name == "whyidle_rdma_info"
    }


def test_counters_of_ports_are_not_counted_again_for_their_device(full: Roots) -> None:
    series, _ = look(full)
    ports = {
        labels[1] for name, labels in series if name == "whyidle_rdma_ack_timeouts_total" and labels[0] == "mlx4_0"
    }
    assert ports == {"1", "2"}
    assert ("whyidle_rdma_device_errors_total", ("mlx4_0", "", "completion_queue_overflow")) in series


def test_infinibands_own_counter_is_preferred_to_the_vendors(roots: Roots) -> None:
    one = hca("bnxt_re0")
    one.ports[0].counters = fake.PMA_EXTENDED  # also in the form of drivers that answer MADs
    device = fake.build_hca(roots, one, count(1))
    series, _ = look(roots)
    raw = int((device / "ports/1/counters/port_rcv_data").read_text())
    assert series["whyidle_rdma_receive_bytes_total", ("bnxt_re0", "1", "")] == raw * 4


def test_settings_of_counters_are_not_counters(full: Roots) -> None:
    series, errors = look(full)
    assert not [1 for _, labels in series if "lifespan" in str(labels)]
    assert not [error for error in errors if "lifespan" in error.file]


def test_missing_files_are_absent_and_counted(full: Roots) -> None:
    series, errors = look(full)
    assert {(error.device, error.reason) for error in errors} == {("irdma0", "unsupported")}
    assert set(errors.values()) == {1}
    assert len(errors) == len(fake.PMA_EXTENDED)
    assert ("whyidle_rdma_symbol_errors_total", ("irdma0", "1")) not in series


def test_unknown_names_are_listed_and_bounded(roots: Roots) -> None:
    [device] = build(roots, "mlx5_1")
    known, _ = look(roots)
    assert ("whyidle_rdma_unknown_file_info", ("mlx5_1", "1", "hw_counters/rx_flux_capacitor")) in known
    for index in range(1000):
        (device / f"ports/1/hw_counters/novel_{index:04}").write_text("7\n")
    (device / "ports/1/hw_counters" / ("n" * 255)).write_text("7\n")
    series, errors = look(roots)
    assert not errors
    assert len([1 for name, _ in series if name == "whyidle_rdma_unknown_file_info"]) == MOST_UNKNOWN
    assert series["whyidle_rdma_unknown_files", ("mlx5_1", "1")] == 1002
    assert max(len(label) for _, labels in series for label in labels) <= 128


def row_of(path: Path) -> Series | None:
    """The series that a file of the simulated tree has, if any."""
    parts = path.parts[path.parts.index("infiniband") + 1 :]
    device, port = parts[0], parts[2] if parts[1] == "ports" else ""
    if path.parent.name in ("counters", "hw_counters"):
        table = rdma.COUNTERS if path.parent.name == "counters" else rdma.HW_COUNTERS
        if device == "mlx4_0" and not port and path.name in fake.MLX4:
            return None
        row = table.get(path.name)
        return (row.metric.name, (device, port, *row.extra)) if row else None
    return (f"whyidle_rdma_port_{path.name.replace('phys_', 'physical_')}", (device, port))


STATES = ("state", "phys_state")
KINDS = ("mlx5_0", "mlx5_2", "mlx4_0", "rdmap16s27", "bnxt_re0", "hfi1_0", "irdma0", "ionic_0")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_affects_only_its_own_series(tmp_path: Path, fault: str) -> None:
    """Every file with counters and states, for each kind of adapter."""
    for kind in KINDS:
        roots = roots_in(tmp_path / kind)
        [device] = build(roots, kind)
        if kind == "irdma0":  # whose counters are bad from the start
            shutil.rmtree(device / "ports/1/counters")
        made: list[RdmaCollector] = []
        knowing = RdmaCollector(roots.sysfs)

        def one_more(roots: Roots = roots, made: list[RdmaCollector] = made) -> RdmaCollector:
            made.append(RdmaCollector(roots.sysfs))
            return made[-1]

        for path in files(device):
            is_counter = path.parent.name in ("counters", "hw_counters")
            if not is_counter and path.name not in STATES:
                continue
            held = {row_of(path)}
            if path.name == "state":
                held.add(("whyidle_rdma_port_up", next(iter(held))[1]))  # pyright: ignore[reportOptionalSubscript]
            # A file that is not listed is not read: the files depend on driver, firmware and kernel.
            counted = held != {None} and not (fault == "missing" and is_counter)
            check(one_more, path, fault, lambda series, held=held: series in held, counted=counted, knowing=knowing)
            while made:
                made.pop().close()
        knowing.close()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "file", ["fw_ver", "board_id", "node_guid", "ports/1/link_layer", "ports/1/lid", "ports/1/rate"]
)
def test_a_bad_identity_file_affects_only_its_label(roots: Roots, file: str, fault: str) -> None:
    [device] = build(roots, "mlx5_0")
    with collector(roots) as known:
        before, _ = read(known)
        with spoilt(device / file, fault):
            for during, errors in (read(known), look(roots)):
                if fault == "garbage" and file != "ports/1/rate":  # a name can be any text
                    assert CONTENTS[fault].decode().strip() in {label for _, labels in during for label in labels}
                    continue
                changed = {name for name, _ in before.keys() ^ during.keys()}
                if file == "ports/1/rate":
                    assert changed == {"whyidle_rdma_port_info", "whyidle_rdma_port_rate_bytes_per_second"}
                else:
                    assert changed == {"whyidle_rdma_port_info" if "ports" in file else "whyidle_rdma_info"}
                assert len(during) == len(before) - (file == "ports/1/rate")
                # A driver without a version has an empty file or none.
                optional = "/" not in file and (fault == "missing" or (fault == "empty" and file == "fw_ver"))
                assert [error.file for error in errors] == ([] if optional else [file])
        assert read(known)[0] == before


@pytest.mark.parametrize("folder", ["ports", "ports/1", "ports/1/counters", "ports/1/hw_counters"])
def test_a_removed_folder_affects_only_its_own_series(roots: Roots, folder: str) -> None:
    [device, _] = build(roots, "mlx5_0", "mlx5_2")
    with collector(roots) as known:
        before, _ = read(known)
        shutil.move(device / folder, device / ".away")
        during, _ = read(known)
        assert {labels[0] for _, labels in before.keys() - during.keys()} == {"mlx5_0"}
        assert not during.keys() - before.keys()
        assert ("whyidle_rdma_info", next(labels for name, labels in before if name == "whyidle_rdma_info")) in during
        shutil.move(device / ".away", device / folder)
        assert read(known)[0] == before


def test_follows_devices_and_ports_that_come_and_go(roots: Roots) -> None:
    with collector(roots) as made:
        with pytest.raises(Absent, match="class/infiniband"):
            made.collect(Reading())
        [first] = build(roots, "mlx5_0")
        alone, _ = read(made)
        [second] = build(roots, "mlx4_0")
        both, errors = read(made)
        assert alone.items() <= both.items()
        assert not errors
        assert {labels[0] for _, labels in both} == {"mlx5_0", "mlx4_0"}
        shutil.rmtree(second / "ports/2")
        shrunk, errors = read(made)
        assert {labels[1] for name, labels in shrunk if name == "whyidle_rdma_port_up"} == {"1"}
        assert not errors
        device_of(roots, "mlx4_0").unlink()
        shutil.rmtree(second)
        assert read(made)[0] == alone
        # Another adapter with the same name, as after a reset: no file of the old one is read.
        shutil.rmtree(first)
        fake.build_hca(roots, hca("mlx5_0"), count(1000))
        anew, errors = read(made)
        assert anew.keys() == alone.keys()
        assert (
            anew["whyidle_rdma_receive_bytes_total", ("mlx5_0", "1", "")]
            != alone["whyidle_rdma_receive_bytes_total", ("mlx5_0", "1", "")]
        )
        assert not errors
        device_of(roots, "mlx5_0").unlink()
        assert read(made) == ({}, {})


def test_an_unreadable_listing_is_an_error_and_not_empty(roots: Roots) -> None:
    build(roots, "mlx5_0")
    listing = Path(roots.sysfs, "class/infiniband")
    with collector(roots) as made:
        before, _ = read(made)
        listing.rename(listing.with_name("away"))
        listing.symlink_to("infiniband")  # a loop
        assert read(made) == ({}, {ReadError("", "class/infiniband", "io"): 1})
        listing.unlink()
        listing.with_name("away").rename(listing)
        assert read(made)[0] == before


def test_exports_counters_of_functions_behind_a_port_beside_those_of_the_device(roots: Roots) -> None:
    """As mlx5 shows them in switchdev mode."""
    [device] = build(roots, "mlx5_0")
    shutil.move(device / "ports/1/hw_counters", device / "hw_counters")
    folder = device / "ports/1/hw_counters"
    folder.mkdir()
    (folder / "vport_out_of_buffer").write_text("77\n")
    series, errors = look(roots)
    own = int((device / "hw_counters/out_of_buffer").read_text())
    assert series["whyidle_rdma_out_of_buffer_packets_total", ("mlx5_0", "")] == own
    assert series["whyidle_rdma_out_of_buffer_packets_total", ("mlx5_0", "1")] == 77
    assert not errors


def test_open_files_do_not_grow_with_devices_that_come_and_go(roots: Roots) -> None:
    build(roots, "mlx5_0")
    with collector(roots) as made:
        read(made)
        open_files = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            [device] = build(roots, "mlx5_2")
            read(made)
            assert len(os.listdir("/proc/self/fd")) > open_files
            device_of(roots, "mlx5_2").unlink()
            shutil.rmtree(device)
            read(made)
            assert len(os.listdir("/proc/self/fd")) == open_files


@pytest.mark.parametrize(
    ("file", "ceiling", "metric"),
    [
        ("port_xmit_wait", (1 << 32) - 1, "transmit_wait_ticks_total"),
        ("symbol_error", 65535, "symbol_errors_total"),
        ("link_downed", 255, "link_downed_total"),
        ("local_link_integrity_errors", 15, "port_errors_total"),
    ],
)
def test_a_saturated_counter_is_reported_and_not_exported(roots: Roots, file: str, ceiling: int, metric: str) -> None:
    [device] = build(roots, "mlx5_0")
    path = device / "ports/1/counters" / file
    before, _ = look(roots)
    path.write_text(f"{ceiling}\n")
    series, errors = look(roots)
    assert series["whyidle_rdma_saturated_info", ("mlx5_0", "1", file)] == 1
    assert {name for name, _ in before.keys() - series.keys()} == {f"whyidle_rdma_{metric}"}
    assert not errors
    path.write_text(f"{ceiling - 1}\n")
    assert look(roots)[0].keys() == before.keys()


def test_all_ones_in_64_bits_means_unknown(roots: Roots) -> None:
    [device] = build(roots, "ionic_0")
    (device / "ports/1/hw_counters/tx_rdma_ack_timeout").write_text(f"{(1 << 64) - 1}\n")
    series, errors = look(roots)
    assert ("whyidle_rdma_ack_timeouts_total", ("ionic_0", "1")) not in series
    assert list(errors) == [ReadError("ionic_0", "ports/1/hw_counters/tx_rdma_ack_timeout", "unsupported")]


def test_32_bit_counters_of_mlx5_continue_after_a_wrap_and_follow_a_reset(roots: Roots) -> None:
    [device] = build(roots, "mlx5_0")
    path = device / "ports/1/hw_counters/rx_read_requests"
    key = ("whyidle_rdma_requests_received_total", ("mlx5_0", "1", "read"))
    with collector(roots) as made:
        seen = []
        for raw in (4_000_000_000, 5, 70, 3):
            path.write_text(f"{raw}\n")
            seen.append(read(made)[0][key])
        assert seen == [4_000_000_000, (1 << 32) + 5, (1 << 32) + 70, 3]


def test_an_adapter_that_was_registered_again_did_not_wrap(roots: Roots) -> None:
    [device] = build(roots, "mlx5_0")
    file = "ports/1/hw_counters/rx_read_requests"
    key = ("whyidle_rdma_requests_received_total", ("mlx5_0", "1", "read"))
    with collector(roots) as made:
        (device / file).write_text("4000000000\n")
        assert read(made)[0][key] == 4_000_000_000
        shutil.copytree(device, device.with_name("anew"), symlinks=True)
        device.rename(device.with_name("old"))
        device.with_name("anew").rename(device)
        (device / file).write_text("5\n")
        assert read(made)[0][key] == 5


def test_counters_of_the_same_name_of_other_drivers_have_64_bits(roots: Roots) -> None:
    [device] = build(roots, "ionic_0")
    path = device / "ports/1/hw_counters/rx_read_requests"
    with collector(roots) as made:
        for raw in (4_000_000_000, 5):
            path.write_text(f"{raw}\n")
            assert read(made)[0]["whyidle_rdma_requests_received_total", ("ionic_0", "1", "read")] == raw


def test_errors_that_have_not_occurred_have_no_series(roots: Roots) -> None:
    [device] = build(roots, "mlx5_0")
    for file in ("resp_cqe_error", "out_of_sequence"):
        (device / "ports/1/hw_counters" / file).write_text("0\n")
    series, errors = look(roots)
    assert ("whyidle_rdma_responder_errors_total", ("mlx5_0", "1", "completion")) not in series
    assert series["whyidle_rdma_out_of_sequence_packets_total", ("mlx5_0", "1")] == 0
    assert not errors


@given(st.binary(max_size=40))
@example(b"400 Gb/sec (4X NDR)\n")
@example(b"4: ACTIVE\n")
def test_parsers_raise_only_unreadable(data: bytes) -> None:
    for parse in (infiniband.rate, infiniband.state):
        reason = "unsupported"
        try:
            parse(data)
        except Unreadable as error:
            reason = error.reason
        assert reason in REASONS


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        (b"2.5 Gb/sec (1X SDR)\n", infiniband.Rate(312_500_000, "1X", "SDR")),
        (b"10 Gb/sec (4X)\n", infiniband.Rate(1_250_000_000, "4X", "")),
        (b"56 Gb/sec (4X FDR)", infiniband.Rate(7_000_000_000, "4X", "FDR")),
        (b"800 Gb/sec (4X XDR) \n", infiniband.Rate(100_000_000_000, "4X", "XDR")),
        (b"40 Gb/sec", infiniband.Rate(5_000_000_000, "", "")),
    ],
)
def test_parses_rates(text: bytes, rate: infiniband.Rate) -> None:
    assert infiniband.rate(text) == rate


def exposition(roots: Roots) -> str:
    reading = Reading()
    with collector(roots) as made:
        made.collect(reading)
    return Exposition().render(rdma.METRICS, [reading.samples], openmetrics=False)


def test_promtool_accepts_the_text(full: Roots) -> None:
    if not shutil.which("promtool"):
        pytest.skip("needs promtool")
    done = subprocess.run(["promtool", "check", "metrics"], input=exposition(full), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_reads_the_adapters_of_this_machine() -> None:
    series, errors = look(Roots())
    assert bool(series) == bool(Path("/sys/class/infiniband").is_dir() and os.listdir("/sys/class/infiniband"))
    assert not {error.reason for error in errors} - set(REASONS)


@contextmanager
def node_exporter(sysfs: str) -> Iterator[str]:
    """The address of a node_exporter that reads only RDMA adapters."""
    if not shutil.which("prometheus-node-exporter"):
        pytest.skip("needs prometheus-node-exporter")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = [f"--path.sysfs={sysfs}", "--collector.disable-defaults", "--collector.infiniband"]
    process = subprocess.Popen(
        ["prometheus-node-exporter", *flags, f"--web.listen-address={address}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://{address}/metrics"
    finally:
        process.kill()
        process.wait()


def theirs(sysfs: str) -> dict[tuple[str, str, str], float]:
    """node_exporter's samples of RDMA ports by name, device and port, and whether its collector succeeded."""
    with node_exporter(sysfs) as url:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                text = urllib.request.urlopen(url, timeout=DEADLINE_SECONDS).read().decode()
                break
            except OSError:
                assert time.monotonic() < deadline, "node_exporter does not answer"
                time.sleep(0.05)
    return {
        (sample.name, sample.labels.get("device", ""), sample.labels.get("port", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(("node_infiniband", "node_scrape_collector_success"))
    }


THEIR_NAMES = {
    "port_data_received_bytes_total": ("receive_bytes_total", ""),
    "port_data_transmitted_bytes_total": ("transmit_bytes_total", ""),
    "port_packets_received_total": ("receive_packets_total", ""),
    "port_packets_transmitted_total": ("transmit_packets_total", ""),
    "unicast_packets_received_total": ("unicast_receive_packets_total",),
    "unicast_packets_transmitted_total": ("unicast_transmit_packets_total",),
    "multicast_packets_received_total": ("multicast_receive_packets_total",),
    "multicast_packets_transmitted_total": ("multicast_transmit_packets_total",),
    "port_transmit_wait_total": ("transmit_wait_ticks_total",),
    "port_discards_transmitted_total": ("transmit_discards_total",),
    "port_errors_received_total": ("receive_errors_total",),
    "symbol_error_total": ("symbol_errors_total",),
    "link_error_recovery_total": ("link_recoveries_total",),
    "link_downed_total": ("link_downed_total",),
    "port_receive_remote_physical_errors_total": ("port_errors_total", "remote_physical"),
    "port_receive_switch_relay_errors_total": ("port_errors_total", "switch_relay"),
    "port_constraint_errors_transmitted_total": ("port_errors_total", "transmit_constraint"),
    "port_constraint_errors_received_total": ("port_errors_total", "receive_constraint"),
    "local_link_integrity_errors_total": ("port_errors_total", "local_link_integrity"),
    "excessive_buffer_overrun_errors_total": ("port_errors_total", "excessive_buffer_overrun"),
    "vl15_dropped_total": ("port_errors_total", "vl15_dropped"),
    "state_id": ("port_state",),
    "physical_state_id": ("port_physical_state",),
    "rate_bytes_per_second": ("port_rate_bytes_per_second",),
}


def test_agrees_with_node_exporter_on_healthy_adapters(roots: Roots) -> None:
    build(roots, "mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")
    ours, _ = look(roots)
    compared = 0
    for (name, device, port), value in theirs(roots.sysfs).items():
        name = name.removeprefix("node_infiniband_")
        if name in ("info", "node_scrape_collector_success"):
            continue
        metric, *extra = THEIR_NAMES[name]
        assert ours[f"whyidle_rdma_{metric}", (device, port, *extra)] == value
        compared += 1
    assert compared == 4 * len(THEIR_NAMES)


def test_an_adapter_without_a_version_and_a_bad_counter_affect_nothing_else(roots: Roots) -> None:
    """In node_exporter 1.5, each of them costs all series of RDMA."""
    devices = build(roots, "mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")
    sound, _ = look(roots)
    (devices[0] / "fw_ver").unlink()
    (devices[1] / "ports/1/counters/symbol_error").write_bytes(CONTENTS["garbage"])
    series, errors = look(roots)
    lost = {(name, labels[0]) for name, labels in sound.keys() - series.keys()}
    assert lost == {("whyidle_rdma_symbol_errors_total", "mlx5_1"), ("whyidle_rdma_info", "mlx5_0")}
    assert {name for name, _ in series.keys() - sound.keys()} == {"whyidle_rdma_info"}
    assert list(errors) == [ReadError("mlx5_1", "ports/1/counters/symbol_error", "garbage")]
    assert set(theirs(roots.sysfs)) == {("node_scrape_collector_success", "", "")}
