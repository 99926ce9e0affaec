"""The parsers of disks, NFS, Lustre, CPU, memory and pressure: exact for what kernels write, and safe for anything
else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_node import cpu, storage
from hypothesis import given, settings
from hypothesis import strategies as st

from whyidle.agent.files import REASONS, Unreadable
from whyidle.agent.metrics.memory import MEMINFO, VMSTAT
from whyidle.agent.parsers import diskstats, llite, meminfo, psi, stat
from whyidle.linux import mountstats

SAMPLES: dict[str, tuple[Callable[[bytes], object], str]] = {
    "diskstats": (diskstats.parse, storage.DISKSTATS),
    "mountstats": (mountstats.split, storage.MOUNTSTATS),
    "mount": (mountstats.parse, storage.NFS_3.partition("\n")[2][:-1]),
    "mountinfo": (lambda data: mountstats.super_blocks(data, "nfs", "nfs4", "lustre"), storage.MOUNTINFO),
    "llite 2.15": (llite.parse, storage.LLITE_215),
    "llite 2.10": (llite.parse, storage.LLITE_210),
    "import": (llite.state, "import:\n    name: x\n    state: FULL\n"),
    "stat": (stat.parse, cpu.STAT),
    "loadavg": (stat.load, cpu.LOADAVG),
    "meminfo": (lambda data: meminfo.meminfo(data, MEMINFO), cpu.MEMINFO),
    "vmstat": (lambda data: meminfo.vmstat(data, VMSTAT), cpu.VMSTAT),
    "pressure": (psi.parse, cpu.pressure(1, 2)),
}


def damaged(text: str) -> st.SearchStrategy[bytes]:
    """The text with a piece cut out, doubled, or replaced by anything."""
    data = text.encode()
    place = st.integers(0, len(data))
    return st.tuples(place, place, st.binary(max_size=40)).map(
        lambda cut: data[: cut[0]] + cut[2] + data[cut[1] :],
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_arbitrary_bytes_raise_only_unreadable(name: str) -> None:
    parse, sound = SAMPLES[name]

    @settings(max_examples=120, deadline=None, database=None)
    @given(st.one_of(st.binary(max_size=300), damaged(sound)))
    def holds(data: bytes) -> None:
        reason, *_ = REASONS
        try:
            parse(data)
        except Unreadable as error:
            reason = error.reason
        assert reason in REASONS

    holds()
    parse(sound.encode())


@given(st.dictionaries(st.sampled_from(["some", "full"]), st.integers(0, 2**64 - 1), min_size=1))
@settings(deadline=None, database=None)
def test_parses_pressure_exactly(totals: dict[str, int]) -> None:
    assert psi.parse(cpu.pressure(totals.get("some"), totals.get("full")).encode()) == totals


@given(st.lists(st.integers(0, 2**64 - 1), min_size=11, max_size=20))
@settings(deadline=None, database=None)
def test_parses_diskstats_exactly(numbers: list[int]) -> None:
    found, bad = diskstats.parse(f" 259       0 nvme0n1 {' '.join(map(str, numbers))}\n".encode())
    assert found["nvme0n1"].fields() == numbers
    assert not bad


@pytest.mark.parametrize(
    ("name", "others", "expected"),
    [
        ("sda1", {"sda"}, True),
        ("sda", {"sda"}, False),
        ("nvme0n1p1", {"nvme0n1"}, True),
        ("nvme0n1", {"nvme0"}, False),
        ("nvme1n1", {"nvme0n1"}, False),
        ("mmcblk0p12", {"mmcblk0"}, True),
        ("mmcblk0", set(), False),
        ("xvda1", set(), False),
        ("dm-11", {"dm-1"}, False),
        ("md127", {"md12", "md1"}, False),
        ("md127p2", {"md127"}, True),
        ("sdaa1", {"sda", "sdaa"}, True),
        ("cciss/c0d0p1", {"cciss/c0d0"}, True),
    ],
)
def test_recognises_partitions(name: str, others: set[str], expected: bool) -> None:
    assert diskstats.is_partition(name, {name, *others}) == expected


def test_names_the_device_of_a_corrupt_diskstats_line() -> None:
    found, bad = diskstats.parse(b" 8 0 sda 1 2 3\nfour score\n 8 16 sdb 1 2 3 4 5 6 7 8 9 10 11\n")
    assert list(found) == ["sdb"]
    assert bad == ["sda", ""]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tcp 875 1 2 0 13 21 20 1 99 6 64 22 33", ("tcp", 2, 13, 21, 20, 1, 6, 33)),
        ("tcp 875 1 2 0 13 21 20 1 99 6", ("tcp", 2, 13, 21, 20, 1, 6, None)),  # statistics 1.0
        ("udp 875 1 21 20 1 99 6 64 22 33", ("udp", None, None, 21, 20, 1, 6, 33)),
        ("local 1 2 0 13 21 20 1 99 6 64 22 33", ("local", 2, 13, 21, 20, 1, 6, 33)),
        ("rdma 0 0 2 0 -4 21 20 1 99 6 7 8 9 10 11 12 13 14 0 0", ("rdma", 2, -4, 21, 20, 1, 6, None)),
    ],
)
def test_parses_transports_of_every_protocol(line: str, expected: tuple[object, ...]) -> None:
    body = f"\tbytes:\t1 2 3 4 5 6 7 8 \n\txprt:\t{line}\n\tper-op statistics\n\t        NULL: 0 0 0 0 0 0 0 0\n"
    assert mountstats.parse(body.encode()).transports == [expected]


def test_an_unknown_protocol_affects_only_itself() -> None:
    body = b"\tbytes:\t1 2 3 4 5 6 7 8 \n\txprt:\tquic 1\n\tper-op statistics\n\t        NULL: 1 1 0 0 0 0 0 0 0 7 7\n"
    mount = mountstats.parse(body)
    assert mount.transports == []
    assert mount.operations[b"NULL"].requests == 1


def test_rejects_truncated_lines() -> None:
    whole = storage.NFS_3.encode()
    (block,), _ = mountstats.split(whole)
    mountstats.parse(block.body)
    for end in range(whole.index(b"\n"), len(whole)):
        (block,), _ = mountstats.split(whole[:end])
        with pytest.raises(Unreadable):
            mountstats.parse(block.body)


def test_parses_mount_names_with_blanks_and_other_bytes() -> None:
    assert mountstats.unescape(rb"/a\040b\134c\011d") == "/a b\\c\td"
    assert mountstats.unescape(rb"/\377") == r"/\xff"
    assert mountstats.unescape("/daten/größe".encode()) == "/daten/größe"


def test_guest_time_is_not_counted_twice() -> None:
    found = stat.parse(cpu.STAT.encode())
    assert list(found.ticks) == list(stat.MODES)
    assert sum(found.ticks.values()) == 1000001 + 2000 + 300003 + 4000004 + 50005 + 60 + 7007 + 808
    assert found.online == cpu.CPUS
    assert not found.bad


@pytest.mark.parametrize("line", stat.LINES)
def test_a_corrupt_line_of_stat_affects_only_itself(line: str) -> None:
    found = stat.parse(cpu.STAT.replace(f"\n{line} ", f"\n{line} x").encode())
    assert found.bad == [line]
    assert found.values.keys() == set(stat.LINES) - {line}


def test_parses_lustre_before_the_first_call() -> None:
    stats = llite.parse(b"snapshot_time             1534770326.579119384 secs.nsecs\n")
    assert not stats.bytes
    assert not stats.operations


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        ("scratch-OST0000-osc-ffff9bc043537800", "scratch-ffff9bc043537800"),
        ("my-fs-MDT000a-mdc-ffff9bc043537800", "my-fs-ffff9bc043537800"),
        ("scratch-OST0000-osc-MDT0000", None),  # a metadata server's own
    ],
)
def test_finds_the_file_system_of_a_connection(connection: str, expected: str | None) -> None:
    assert llite.file_system_of(connection) == expected
