"""The collector `placement`, on the trees of several kinds of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from fake_node import numa, processes
from fake_node.numa import Tree
from hypothesis import given
from hypothesis import strategies as st
from support_ledgers import children
from support_matrix import FAULTS, Series, check, read, spoilt
from support_ranks import Scrapes

from whyidle.agent.collectors.placement import Binding, PlacementCollector, create
from whyidle.agent.files import Roots, Unreadable
from whyidle.agent.parsers import numa as parser
from whyidle.agent.reading import Absent, Reading
from whyidle.ledger.links import link_text
from whyidle.linux.cpu_lists import listed

Place = tuple[str, str, str, str]  # device, its node, the node of the CPU, near or far


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "ledgers"
    folder.mkdir()
    links = [
        {"link": link_text("rdma", "mlx5_0/1", ""), "all": 1 << 30, "connections": 4},
        {"link": link_text("tcp", "eth0", "")},
    ]
    with children(folder, *(replace(spec, uuid=f"GPU-{spec.rank}", links=links) for spec in processes.specs())):
        yield folder


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    found = Roots(*(str(tmp_path / name) for name in ("proc", "sys", "root")))
    processes.build(found)
    return found


def scrapes(ledgers: Path, roots: Roots, gpus: Mapping[str, int]) -> Scrapes:
    """The ranks use these GPUs, in this order."""
    made = Scrapes(create, ledgers, roots)
    made.options.gpus.update({str(rank): address for rank, address in enumerate(gpus)})
    return made


def places(series: Mapping[Series, object]) -> dict[str, dict[Place, object]]:
    found: dict[str, dict[Place, object]] = {}
    for (_, labels), value in series.items():
        device, device_node, cpu_node, place = labels[3:]
        found.setdefault(labels[2], {})[device, device_node, cpu_node, place] = value
    return found


def bindings(of: Scrapes) -> list[Binding]:
    assert isinstance(of.collector, PlacementCollector)
    return of.collector.bindings()


CASES: list[tuple[str, Tree, tuple[int, int], dict[str, dict[Place, object]]]] = [
    # The CPUs on which the ranks run, and where they are, seen from their devices.
    (
        "two sockets",
        numa.TWO_SOCKETS,
        (3, 9),
        {
            "0": {("gpu", "0", "0", "near"): 1, ("adapter", "1", "0", "far"): 1},
            "1": {("gpu", "1", "0", "far"): 1, ("adapter", "1", "0", "far"): 1},
        },
    ),
    ("clusters", numa.CLUSTERS, (3, 3), {"0": {("gpu", "1", "0", "near"): 1}, "1": {("gpu", "2", "0", "far"): 1}}),
    ("NPS4", numa.NPS4, (129, 129), {"0": {("gpu", "3", "0", "near"): 1}, "1": {("gpu", "7", "0", "far"): 1}}),
    ("GB200", numa.GB200, (71, 71), {"0": {("gpu", "0", "0", "near"): 1}, "1": {("gpu", "1", "0", "far"): 1}}),
    (
        "POWER9",
        numa.POWER9,
        (80, 79),
        {
            "0": {("gpu", "0", "8", "far"): 1, ("adapter", "8", "8", "near"): 1},
            "1": {("gpu", "8", "0", "far"): 1, ("adapter", "8", "0", "far"): 1},
        },
    ),
    (
        "without sockets",
        numa.WITHOUT_SOCKETS,
        (3, 3),
        {"0": {("gpu", "0", "0", "near"): 1}, "1": {("gpu", "1", "0", "far"): 1}},
    ),
    ("one socket", numa.ONE_SOCKET, (3, 3), {}),
    ("devices that the firmware does not tell", numa.UNTOLD, (3, 3), {}),
    ("no sysfs", Tree({}), (3, 3), {}),
    ("a GPU on a node without CPUs", replace(numa.GB200, gpus={"0008:01:00.0": 10, "a": 2}), (3, 3), {}),
]


@pytest.mark.parametrize(("tree", "cpus", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_tells_where_ranks_run_beside_their_devices(
    tree: Tree, cpus: tuple[int, int], expected: dict[str, dict[Place, object]], ledgers: Path, roots: Roots
) -> None:
    numa.build(roots, tree, dict(enumerate(cpus)))
    series, errors = read(scrapes(ledgers, roots, tree.gpus))
    assert not errors
    assert places(series) == expected


def test_counts_each_scrape_and_keeps_the_binding(ledgers: Path, roots: Roots) -> None:
    numa.build(roots)
    of = scrapes(ledgers, roots, numa.TWO_SOCKETS.gpus)
    for cpu in (4, 4, 4, 3):
        numa.run_on(roots, 0, cpu)
        series, errors = read(of)
        assert not errors
    assert places(series)["0"][("gpu", "0", "1", "far")] == 3
    assert places(series)["0"][("gpu", "0", "0", "near")] == 1
    one, other = bindings(of)
    assert (one.run, one.rank, one.cpus, one.cpu_nodes) == ("r1", 0, "0-15", (0, 1))
    assert (one.memory_nodes, one.policy) == ("0-1", "prefer=relative:1")
    assert (one.ran_on, one.gpu_node, one.adapter, one.adapter_node) == ({1: 3, 0: 1}, 0, "mlx5_0", 1)
    assert (one.far, other.far) == (("gpu",), ("gpu", "adapter"))


def test_a_node_with_one_numa_node_is_absent(ledgers: Path, roots: Roots) -> None:
    numa.build(roots, numa.ONE_SOCKET)
    of = scrapes(ledgers, roots, numa.ONE_SOCKET.gpus)
    with pytest.raises(Absent, match="second NUMA node"):
        of.collect(Reading())
    assert bindings(of) == []


def test_a_rank_without_a_known_gpu_has_no_series_for_it(ledgers: Path, roots: Roots) -> None:
    numa.build(roots, replace(numa.TWO_SOCKETS, adapters={}))
    of = scrapes(ledgers, roots, {})
    series, errors = read(of)
    assert not series
    assert not errors
    assert [(one.ran_on, one.gpu_node) for one in bindings(of)] == [({0: 1}, None)] * 2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_affects_only_its_own_series(fault: str, ledgers: Path, roots: Roots) -> None:
    numa.build(roots)
    for path, device in (("bus/pci/devices/0000:2b:00.0", "gpu"), ("class/infiniband/mlx5_0/device", "adapter")):

        def holds(series: Series, device: str = device) -> bool:
            return series[1][3] == device and (device == "adapter" or series[1][2] == "1")

        file = Path(roots.sysfs, path, "numa_node")
        check(lambda: Anew(ledgers, roots), file, fault, holds, counted=fault != "missing")


@pytest.mark.parametrize("file", ["stat", "status"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_of_a_rank_costs_the_others_nothing(fault: str, file: str, ledgers: Path, roots: Roots) -> None:
    numa.build(roots)
    with spoilt(Path(roots.procfs, str(processes.RANKS[0]), file), fault):
        series, _ = read(scrapes(ledgers, roots, numa.TWO_SOCKETS.gpus))
    assert set(places(series)) == {"1"}


class Anew:
    """Looks at everything again at each scrape."""

    def __init__(self, ledgers: Path, roots: Roots):
        self._made = lambda: scrapes(ledgers, roots, numa.TWO_SOCKETS.gpus)

    def collect(self, reading: Reading) -> None:
        self._made().collect(reading)


@given(st.frozensets(st.integers(0, 500)))
def test_lists_of_numbers_are_read_as_they_are_written(cpus: frozenset[int]) -> None:
    assert parser.numbers(listed(cpus).encode() + b"\n") == cpus


@pytest.mark.parametrize("text", [b"0-", b"3-1", b"a", b"0-99999999", b"1,-2"])
def test_rejects_bad_lists(text: bytes) -> None:
    with pytest.raises(Unreadable):
        parser.numbers(text)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"55d1f3a00000 default file=/usr/bin/python3", "default"),
        (b"7f1000000000 bind:0 file=/usr", "bind:0"),
        (b"7f1000000000 interleave:0-1,4 file=/usr", "interleave:0-1,4"),
        (b"7f1000000000 bind=static|balancing:0-1 file=", "bind=static|balancing:0-1"),
        (b"7f1000000000 prefer (many):0 file=", "prefer (many):0"),
        (b"7f1000000000 weighted interleave:0-1 ", "weighted interleave:0-1"),
        (b"", ""),
        (b"\xff\x00 x", ""),
    ],
)
def test_reads_the_memory_policy(line: bytes, expected: str) -> None:
    assert parser.policy(line) == expected


@pytest.mark.parametrize(
    ("governor", "driver", "least", "most", "expected"),
    [
        ("performance", "acpi-cpufreq", 800, 4000, 1.0),
        ("schedutil", "acpi-cpufreq", 800, 2000, 0.5),  # scaling_max_freq is lowered
        ("powersave", "acpi-cpufreq", 800, 4000, 0.2),
        ("powersave", "intel_cpufreq", 800, 4000, 0.2),  # intel_pstate in passive mode
        ("powersave", "intel_pstate", 800, 4000, 1.0),
        ("powersave", "amd-pstate-epp", 800, 3000, 0.75),
        ("performance", "acpi-cpufreq", 0, 0, None),
        ("performance", "acpi-cpufreq", 5000, 4000, None),
    ],
)
def test_a_governor_limits_the_frequency(
    governor: str, driver: str, least: int, most: int, expected: float | None
) -> None:
    assert parser.frequency_limit(governor, driver, least, most, 4000) == expected
