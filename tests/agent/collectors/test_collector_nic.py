"""Network interfaces: which are reported, what is read about them, and what their drivers count."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import support_ledgers
from fake_node import kernel, nic, rdma
from hypothesis import given
from hypothesis import strategies as st
from support_exporter import node_exporter
from support_ledgers import Spec, children, until
from support_matrix import FAULTS, Anew, Series, check, files, read, spoilt

from whyidle.agent.collector import Collector, Options
from whyidle.agent.collectors.nic import NicCollector
from whyidle.agent.collectors.nic import create as nic_create
from whyidle.agent.collectors.tcp import create as tcp_create
from whyidle.agent.exposition import Exposition
from whyidle.agent.files import Roots, Unreadable
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.metrics import clock, tcp
from whyidle.agent.metrics.nic import METRICS
from whyidle.agent.metrics.nic_drivers import DRIVER_COUNTERS
from whyidle.agent.parsers import ethtool
from whyidle.agent.reading import Reading
from whyidle.linux import netdev

NIC = "whyidle_nic_"
needs_compiler = pytest.mark.skipif(not kernel.COMPILER, reason="needs a C compiler: a kernel that is scripted")


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    found = Roots(str(tmp_path / "proc"), str(tmp_path / "sys"), str(tmp_path / "root"))
    nic.build(found)
    return found


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "kernel"
    kernel.write(path, nic.SCRIPT)
    return path


def collector(roots: Roots) -> NicCollector:
    return nic_create(Options(LedgerStore("/nonexistent", 1), roots))


def devices(series: dict[Series, object]) -> set[str]:
    return {labels[0] for name, labels in series if name == f"{NIC}info"}


def test_counters_come_from_the_node_and_not_from_the_reader(roots: Roots) -> None:
    Path(roots.procfs, "net/dev").write_text(nic.net_dev(nic.FAKES[:1]))  # the target of `self`
    series, errors = read(collector(roots))
    assert not errors
    assert series[f"{NIC}bytes_total", ("eth0", "receive")] == 912_345_678_901
    assert series[f"{NIC}bytes_total", ("eth0", "transmit")] == 81_234_567_890
    assert series[f"{NIC}packets_total", ("eth0", "receive")] == 912_345_678
    assert series[f"{NIC}drops_total", ("eth2", "receive")] == 1207
    assert series[f"{NIC}errors_total", ("eth2", "transmit")] == 2
    assert series[f"{NIC}missed_packets_total", ("eth2",)] == 1203
    faults = {labels: value for (name, labels), value in series.items() if name == f"{NIC}faults_total"}
    assert faults == {
        ("eth2", "receive", "fifo"): 1203,
        ("eth2", "receive", "frame"): 3,
        ("eth2", "transmit", "carrier"): 1,
    }


def test_reports_a_hidden_first_process(roots: Roots) -> None:
    shutil.rmtree(Path(roots.procfs, "1"))
    reading = Reading()
    collector(roots).collect(reading)
    assert reading.blind_spots[0].what == "the network interfaces of the node"
    assert reading.samples


def test_exports_link_state_and_speed(roots: Roots) -> None:
    series, _ = read(collector(roots))
    assert series[f"{NIC}speed_bytes_per_second", ("eth2",)] == 50_000_000_000
    assert series[f"{NIC}carrier_changes_total", ("eth2",)] == 5
    assert series[f"{NIC}mtu_bytes", ("eth0",)] == 9001
    assert series[f"{NIC}full_duplex", ("ibp27s0",)] == 1
    assert series[f"{NIC}up", ("bond0",)] == 1
    assert (f"{NIC}speed_bytes_per_second", ("eth0",)) not in series


@pytest.mark.parametrize(
    ("file", "text", "metric", "value", "errors"),
    [
        ("speed", "-1\n", "speed_bytes_per_second", None, 0),
        ("speed", "4294967295\n", "speed_bytes_per_second", None, 0),
        ("speed", "-2\n", "speed_bytes_per_second", None, 1),
        ("duplex", "half\n", "full_duplex", 0, 0),
        ("duplex", "unknown\n", "full_duplex", None, 0),
        ("operstate", "lowerlayerdown\n", "up", 0, 0),
        ("operstate", "unknown\n", "up", None, 0),
        ("operstate", "elsewhere\n", "up", None, 1),
    ],
)
def test_exports_attributes(roots: Roots, file: str, text: str, metric: str, value: object, errors: int) -> None:
    Path(roots.sysfs, "class/net/eth2", file).write_text(text)
    series, found = read(collector(roots))
    assert series.get((NIC + metric, ("eth2",))) == value
    assert sum(found.values()) == errors


def test_exports_the_kind_of_each_interface(roots: Roots) -> None:
    rdma.build(roots)
    series, _ = read(collector(roots))
    assert {labels for name, labels in series if name == f"{NIC}info"} == {
        ("lo", "loopback", "", "", "", ""),
        ("eth0", "physical", "ena", "", nic.ENA, ""),
        ("eth2", "physical", "mlx5_core", "bond0", nic.ROCE[0], "mlx5_2"),
        ("eth3", "physical", "mlx5_core", "bond0", nic.ROCE[1], "mlx5_3"),
        ("ibp27s0", "physical", "mlx5_core", "", nic.IPOIB, "mlx5_0"),
        ("eth4", "physical", "bnxt_en", "", nic.BNXT, "bnxt_re0"),
        ("eth5", "physical", "ice", "", nic.ICE, "irdma0"),
        ("eth6", "physical", "ionic", "", nic.IONIC, "ionic_0"),
        ("bond0", "bond", "", "", "", ""),
        ("bond0.100", "vlan", "", "", "", ""),
    }
    assert series[f"{NIC}left_out_interfaces", ()] == len(nic.LEFT_OUT)


def test_reports_the_interface_of_the_default_route(roots: Roots) -> None:
    route = Path(roots.procfs, "1/net/route")
    route.write_text(route.read_text().replace("eth0\t", "tunl0\t"))
    series, _ = read(collector(roots))
    assert "tunl0" in devices(series)
    assert series[f"{NIC}left_out_interfaces", ()] == len(nic.LEFT_OUT) - 1


def test_distinguishes_virtual_and_physical_functions(roots: Roots) -> None:
    Path(roots.sysfs, "class/net/eth0/device/physfn").symlink_to("../0000:00:04.0")
    series, _ = read(collector(roots))
    assert (f"{NIC}info", ("eth0", "vf", "ena", "", nic.ENA, "")) in series


def test_veths_have_no_series_and_virtual_functions_have_few(tmp_path: Path, roots: Roots) -> None:
    before, _ = read(collector(roots))
    veths = tuple(nic.Fake(f"veth{index:04}", nic.FAKES[0].counts) for index in range(500))
    functions = tuple(
        nic.Fake(f"v{index:03}", nic.FAKES[0].counts, f"pci0000:40/0000:40:{index // 8:02x}.{index % 8}", "mlx5_core")
        for index in range(100)
    )
    for index, fake in enumerate((*veths, *functions)):
        nic.add(roots, fake, 100 + index)
    write_net_dev(roots, (*nic.FAKES, *veths))
    series, _ = read(collector(roots))
    assert series.keys() == before.keys()
    assert series[f"{NIC}left_out_interfaces", ()] == len(nic.LEFT_OUT) + 500
    write_net_dev(roots, (*nic.FAKES, *functions))
    series, _ = read(collector(roots))
    assert len(devices(series)) == 64
    assert {"eth0", "eth2", "ibp27s0"} < devices(series)


def write_net_dev(roots: Roots, fakes: tuple[nic.Fake, ...]) -> None:
    Path(roots.procfs, "1/net/dev").write_text(nic.net_dev(fakes))


def test_follows_interfaces_that_come_and_go_and_counters_that_restart(roots: Roots) -> None:
    one = collector(roots)
    before, _ = read(one)
    new = nic.Fake("ens9", nic.FAKES[1].counts, "pci0000:90/0000:90:00.0", "ice", "100000\n", changes=1)
    nic.add(roots, new, 50)
    write_net_dev(roots, (*nic.FAKES, new))
    series, errors = read(one)
    assert devices(series) == devices(before) | {"ens9"}
    assert series[f"{NIC}speed_bytes_per_second", ("ens9",)] == 12_500_000_000
    shutil.rmtree(Path(roots.sysfs, "devices/pci0000:90"))
    Path(roots.sysfs, "class/net/ens9").unlink()
    write_net_dev(roots, nic.FAKES)
    series, errors = read(one)
    assert series == before
    assert not errors
    again = nic.Fake("ens9", (*[0] * 16,), "pci0000:91/0000:91:00.0", "ice", "200000\n", changes=0)
    nic.add(roots, again, 51)
    write_net_dev(roots, (*nic.FAKES, again))
    series, errors = read(one)
    assert series[f"{NIC}speed_bytes_per_second", ("ens9",)] == 25_000_000_000
    assert series[f"{NIC}bytes_total", ("ens9", "receive")] == 0
    assert not errors


def test_a_corrupt_line_affects_only_its_interface(roots: Roots) -> None:
    path = Path(roots.procfs, "1/net/dev")
    before, _ = read(collector(roots))
    path.write_text(path.read_text().replace("912345678901", "91234567890x"))
    series, errors = read(collector(roots))
    lost = before.keys() - series.keys()
    assert {labels[0] for _, labels in lost} == {"eth0"}
    assert [(error.device, error.file, error.reason) for error in errors] == [("eth0", "net/dev", "garbage")]


@pytest.mark.parametrize("fault", FAULTS)
def test_each_bad_file_affects_only_its_own_series(roots: Roots, fault: str) -> None:
    def create() -> Collector:
        # The removal of a name does not affect an open file. Files of sysfs then return ENODEV.
        return Anew(lambda: collector(roots)) if fault in ("missing", "EINVAL") else collector(roots)

    node = Path(roots.procfs, "1/net/dev")
    counted = {f"{NIC}{what}_total" for what in ("bytes", "packets", "errors", "drops", "faults")}
    check(create, node, fault, lambda series: series[0] in counted)
    metric_of = {
        "rx_missed_errors": "missed_packets_total",
        "carrier_changes": "carrier_changes_total",
        "operstate": "up",
        "mtu": "mtu_bytes",
        "speed": "speed_bytes_per_second",
        "duplex": "full_duplex",
    }
    tried = 0
    for path in files(Path(roots.sysfs)):
        metric, device = metric_of.get(path.name), path.parts[path.parts.index("net") + 1]
        if metric is None or device == "lo" or device in nic.LEFT_OUT:
            continue
        tried += 1
        held = (NIC + metric, (device,))
        check(
            create,
            path,
            fault,
            lambda series, held=held: series == held,
            counted=not (fault == "EINVAL" and path.name in ("speed", "duplex")),
        )
    assert tried == 6 * 9 - 2


@pytest.mark.parametrize("fault", FAULTS)
def test_identity_does_not_need_unreadable_files(roots: Roots, fault: str) -> None:
    for path in (Path(roots.procfs, "1/net/route"), Path(roots.sysfs, "devices/virtual/net/bond0.100/uevent")):
        with spoilt(path, fault):
            series, errors = read(collector(roots))
        assert "bond0.100" in devices(series)
        assert not errors


def test_a_node_without_interfaces_is_absent(tmp_path: Path) -> None:
    assert read(collector(Roots(str(tmp_path), str(tmp_path), str(tmp_path)))) == ({}, {})


@needs_compiler
def test_exports_counters_of_drivers(roots: Roots, script: Path) -> None:
    with kernel.scraper("nic", roots, script) as scrape:
        series, errors, blind = scrape()
    assert not errors
    assert not blind
    expected = {
        ("pause_frames_total", "eth2", "receive", "3"): 40_001,
        ("pause_frames_total", "eth2", "transmit", "3"): 801,
        ("pause_seconds_total", "eth2", "receive", "3"): 2.5,
        ("pause_seconds_total", "eth2", "transmit", "3"): 0.125,
        ("pci_stalled_seconds_total", "eth2", "write"): 12,
        ("pci_stalled_seconds_total", "eth3", "write"): 0,
        ("pci_overflow_packets_total", "eth2"): 6,
        ("pci_errors_total", "eth2", "transmit"): 2,
        ("out_of_buffer_total", "eth2"): 17,
        ("discards_total", "eth2", "receive"): 19,
        ("ecn_marked_packets_total", "eth2", "network"): 77,
        ("wire_bytes_total", "eth2", "receive"): 1_234_567_890_123,
        ("pause_frames_total", "eth4", "receive", "5"): 505,
        ("pause_seconds_total", "eth4", "receive", "5"): 0.75,
        ("wire_errors_total", "eth4", "crc"): 2,
        ("pause_frames_total", "eth5", "transmit", "2"): 61,
        ("wire_bytes_total", "eth5", "receive"): 220_000_000_005,
        ("pause_frames_total", "eth6", "receive", "pfc"): 9,
        ("pause_seconds_total", "eth6", "receive", "1"): 0.25,
        ("allowance_exceeded_packets_total", "eth0", "bandwidth_in"): 1009,
        ("allowance_exceeded_packets_total", "eth0", "packets"): 0,
    }
    assert {key: series[(NIC + key[0], *key[1:])] for key in expected} == expected
    sparse = {f"{NIC}pause_frames_total", f"{NIC}pause_storms_total", f"{NIC}priority_discards_total"}
    assert not [key for key in series if key[0] in sparse and key[1] == "eth3"]
    assert len(series) < 20 * 10  # interfaces that are reported


@needs_compiler
def test_a_series_that_appeared_stays(roots: Roots, script: Path) -> None:
    key = (f"{NIC}pause_frames_total", "eth2", "receive", "3")
    with kernel.scraper("nic", roots, script) as scrape:
        assert scrape()[0][key] == 40_001
        kernel.write(script, [line.replace(" 40001 ", " 0 ") for line in nic.SCRIPT])
        assert scrape()[0][key] == 0


@needs_compiler
def test_exports_every_name_of_every_driver(roots: Roots, script: Path) -> None:
    drivers = Path(roots.sysfs, "class/net/eth0/device/driver")
    with kernel.scraper("nic", roots, script) as scrape:
        for driver, names in DRIVER_COUNTERS.items():
            drivers.unlink()
            drivers.symlink_to(f"../drivers/{driver}")
            stats = {name: 1_000_000 * (place + 1) for place, name in enumerate(names)}
            kernel.write(script, kernel.driver("eth0", driver, nic.ENA, stats))
            expected: dict[tuple[str, ...], float] = {}
            for name, (metric, labels) in names.items():
                key = (metric.name, "eth0", *labels)
                expected[key] = expected.get(key, 0) + metric.base(stats[name])
                assert len(key) == len(metric.labels) + 1
            series, errors, _ = scrape(anew=True)
            assert not [error for error in errors if error[0] == "eth0"]
            assert {key: series.get(key) for key in expected} == expected


ERRORS = {
    errno.EPERM: "denied",
    errno.EOPNOTSUPP: "unsupported",
    errno.ENODEV: "gone",
    errno.EIO: "io",
    errno.EINVAL: "invalid",
}


@needs_compiler
def test_a_failed_call_affects_only_its_interface(roots: Roots, script: Path) -> None:
    with kernel.scraper("nic", roots, script) as scrape:
        before, _, _ = scrape()
        counted = {key for key in before if key[1:2] == ("eth2",) and key[0] in driver_metrics()}
        assert counted
        for call in ("drvinfo", "count", "strings", "stats"):
            for code, reason in ERRORS.items():
                where = (call, reason)
                kernel.write(script, nic.SCRIPT, [kernel.fail("eth2", call, code)])
                # A collector that already knows the driver and the names does not ask again.
                during, _, _ = scrape()
                assert before.keys() - during.keys() == (counted if call in ("count", "stats") else set()), where
                during, errors, blind = scrape(anew=True)
                assert before.keys() - during.keys() == counted, where
                if reason == "denied" or (reason == "gone" and call == "drvinfo"):
                    assert [len(errors), len(blind)] == [0, 1], where
                elif reason == "unsupported":
                    assert not errors + blind, where
                else:
                    assert [(error[0], error[2]) for error in errors] == [("eth2", reason)], where
                kernel.write(script, nic.SCRIPT)
                # "unsupported" is trusted for a while, other errors are tried again.
                after, errors, blind = scrape(anew=reason == "unsupported")
                assert after == before, where
                assert not errors + blind, where


def driver_metrics() -> set[str]:
    return {counter.metric.name for counters in DRIVER_COUNTERS.values() for counter in counters.values()}


@needs_compiler
def test_does_not_ask_an_interface_of_the_same_name_in_another_namespace(roots: Roots, script: Path) -> None:
    kernel.write(script, [line.replace(nic.ENA, "virtio0") for line in nic.SCRIPT])
    with kernel.scraper("nic", roots, script) as scrape:
        series, errors, blind = scrape()
    assert (f"{NIC}allowance_exceeded_packets_total", "eth0", "packets") not in series
    assert (f"{NIC}pci_overflow_packets_total", "eth2") in series
    assert not errors
    assert "not in the network namespace" in blind[0][1]


@needs_compiler
def test_counters_that_were_set_up_again_are_not_confused(roots: Roots, script: Path) -> None:
    with kernel.scraper("nic", roots, script) as scrape:
        before, _, _ = scrape()
        more = kernel.driver("eth0", "ena", nic.ENA, {f"queue_{queue}": queue for queue in range(3000)})
        kernel.write(script, more, nic.SCRIPT)
        during, errors, _ = scrape()
        assert {key[1] for key in before.keys() - during.keys()} == {"eth0"}
        assert errors == [("eth0", "ETHTOOL_GSTATS", "changed")]
        after, errors, _ = scrape()
        assert after == before
        assert not errors


@pytest.fixture
def namespace() -> Iterator[str]:
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root and ip: a network namespace of its own")
    name = f"whyidle-{uuid.uuid4().hex[:8]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"needs a network namespace: {made.stderr}")
    try:
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@needs_compiler
def test_reads_a_real_namespace(namespace: str, tmp_path: Path) -> None:
    """Without hardware all interfaces are reported. A carrier that changes is counted. Real ioctls are used."""
    ip("-n", namespace, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
    inside = ("ip", "netns", "exec", namespace)
    (tmp_path / "none").write_text("")
    with kernel.scraper("nic", Roots(), tmp_path / "none", *inside) as scrape:
        series, errors, _ = scrape()
        assert {key[1] for key in series if key[0] == f"{NIC}info"} == {"lo", "v0", "v1"}
        assert not errors
        changes = series[f"{NIC}carrier_changes_total", "v0"]
        assert series[f"{NIC}up", "v0"] == 0
        ip("-n", namespace, "link", "set", "v0", "up")
        ip("-n", namespace, "link", "set", "v1", "up")
        until(lambda: scrape()[0][f"{NIC}up", "v0"] == 1)  # the kernel updates links in a separate thread
        series, errors, _ = scrape()
        assert series[f"{NIC}carrier_changes_total", "v0"] > changes
        assert series[f"{NIC}speed_bytes_per_second", "v0"] == 1_250_000_000  # what a veth reports about itself
        ip("-n", namespace, "link", "del", "v0")
        series, errors, _ = scrape()
        assert {key[1] for key in series if key[0] == f"{NIC}info"} == {"lo"}
        assert not errors


ANYBODY = """
import ctypes, os, sys
from whyidle.agent.kernel.ethtool import Ethtool
fd = os.open(sys.argv[1], os.O_RDONLY)
assert ctypes.CDLL(None, use_errno=True).setns(fd, 0) == 0
os.setuid(65534)
asked = Ethtool()
assert asked.driver("v0").name == "veth"
names = asked.names("v0")
values = asked.values("v0", len(names))
assert values[names.index("peer_ifindex")] > 1
assert asked.values("v0", len(names) + 1) is None
"""


def test_real_drivers_answer_without_privileges(namespace: str) -> None:
    """Reading the counters of a driver needs no privileges."""
    ip("-n", namespace, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
    subprocess.run([sys.executable, "-c", ANYBODY, f"/var/run/netns/{namespace}"], check=True, timeout=60)


RANK = """
import ctypes, os, sys
sys.path.insert(0, {support!r})
from support_ledgers import _main
fd = os.open("/var/run/netns/{namespace}", os.O_RDONLY)
assert ctypes.CDLL(None, use_errno=True).setns(fd, 0) == 0
_main(*sys.argv[1:])
"""


def test_exports_traffic_of_ranks_in_a_separate_namespace(namespace: str, tmp_path: Path) -> None:
    ip("-n", namespace, "link", "add", "eth0", "type", "veth", "peer", "name", "v1")
    for link in ("eth0", "v1", "lo"):
        ip("-n", namespace, "link", "set", link, "up")
    script = tmp_path / "rank.py"
    script.write_text(RANK.format(support=str(Path(support_ledgers.__file__).parent), namespace=namespace))
    ledgers = tmp_path / "ledgers"
    ledgers.mkdir()
    store = LedgerStore(str(ledgers), 60)
    options = Options(store)
    one, two = nic_create(options), tcp_create(options)
    with children(ledgers, Spec(rank=1), Spec(rank=2), script=script), children(ledgers, Spec(rank=0)):
        store.look()
        series, errors = read(one)
        inside = {labels[:2] for name, labels in series if name == f"{NIC}namespace_bytes_total"}
        assert inside == {("lab/r1/1", "eth0"), ("lab/r1/1", "v1")}
        assert len([name for name, _ in series if name.startswith(f"{NIC}namespace_")]) == 8
        series, errors = read(two)
        assert not errors
        whose = {labels for name, labels in series if name == "whyidle_tcp_namespace_info"}
        assert whose == {("host", "lab", "r1", "0"), ("lab/r1/1", "lab", "r1", "1"), ("lab/r1/1", "lab", "r1", "2")}
        assert series["whyidle_tcp_sent_segments_total", ("lab/r1/1",)] == 0
        held = os.listdir("/proc/self/fd")
    store.look()

    def gone() -> bool:  # ranks are listed again once a second
        return not any("lab/r1/1" in labels for _, labels in read(one)[0].keys() | read(two)[0].keys())

    assert until(gone)
    assert len(os.listdir("/proc/self/fd")) <= len(held)


def number(value: object) -> float:
    assert isinstance(value, int | float)
    return value


@pytest.mark.skipif(not shutil.which("prometheus-node-exporter"), reason="needs prometheus-node-exporter")
def test_agrees_with_node_exporter() -> None:
    """The values that only grow are between two answers of node_exporter."""
    with node_exporter("netdev", "netclass") as theirs:
        before = theirs()
        ours, _ = read(nic_create(Options(LedgerStore("/nonexistent", 1))))
        after = theirs()
    compared = 0
    both = {labels[0][1] for name, labels in after if name == "node_network_receive_bytes_total"} & devices(ours)
    for what, theirs_what in {"bytes": "bytes", "packets": "packets", "errors": "errs"}.items():
        for device in both:
            for direction in ("receive", "transmit"):
                key = (f"node_network_{direction}_{theirs_what}_total", (("device", device),))
                assert before[key] <= number(ours[f"{NIC}{what}_total", (device, direction)]) <= after[key]
                compared += 1
    for device in both:
        key = ("node_network_carrier_changes_total", (("device", device),))
        assert ours[f"{NIC}carrier_changes_total", (device,)] == after[key]
        assert ours[f"{NIC}mtu_bytes", (device,)] == after["node_network_mtu_bytes", (("device", device),)]
    if not compared:
        pytest.skip("needs an interface that node_exporter reports too: the loopback it does not")


def test_declared_metrics_are_consistent(roots: Roots, script: Path) -> None:
    """Each metric of the table can have a series, with its labels."""
    series, _ = read(collector(roots))
    metrics = {metric.name: metric for metric in METRICS}
    for name, labels in series:
        assert len(labels) == len(metrics[name].labels)
    from_namespaces = {f"{NIC}namespace_bytes_total", f"{NIC}namespace_drops_total"}
    assert metrics.keys() - {name for name, _ in series} - driver_metrics() == from_namespaces


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool")
def test_promtool_accepts_the_text() -> None:
    for metrics in (METRICS, tcp.METRICS, clock.METRICS):
        samples = {metric: {tuple(metric.labels): 1.0} for metric in metrics}
        text = Exposition().render(metrics, [samples], openmetrics=False)
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


@given(st.binary(max_size=2000))
def test_garbage_raises_only_unreadable(data: bytes) -> None:
    for parse in (netdev.interfaces, ethtool.names, ethtool.driver):
        try:
            parse(data)
        except Unreadable:
            pass
    netdev.default_routes(data)


NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789.-@", min_size=1, max_size=15).filter(lambda n: n.strip("."))


@given(st.dictionaries(NAMES, st.lists(st.integers(0, 2**64 - 1), min_size=16, max_size=16)), st.binary(max_size=40))
def test_parses_interfaces_as_the_kernel_writes_them(given_: dict[str, list[int]], junk: bytes) -> None:
    text = nic.net_dev(tuple(nic.Fake(name, tuple(counts)) for name, counts in given_.items()))
    found = netdev.interfaces(text.encode())
    assert {name: netdev.values(columns) for name, columns in found.interfaces.items()} == given_
    assert not found.bad
    spoilt_text = text.encode() + junk.replace(b"\n", b"") + b"\n"
    again = netdev.interfaces(spoilt_text)
    assert {name: again.interfaces[name] for name in given_ if name.encode() not in junk} == {
        name: found.interfaces[name] for name in given_ if name.encode() not in junk
    }
