"""What mounts say of themselves, what control groups allow, and how the time of waits is divided."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.ledger.mounts import LIMITS, SIDES
from whyidle.linux.mountinfo import Mount
from whyidle.torch_hooks.storage import rates
from whyidle.torch_hooks.storage.counters import Counted, counted, disk, interfaces
from whyidle.torch_hooks.storage.limits import io_max, limit_of, throttle
from whyidle.torch_hooks.storage.looks import Shares
from whyidle.torch_hooks.storage.mounts import Used, store
from whyidle.torch_hooks.storage.rates import AT, Rate
from whyidle.torch_hooks.storage.readers import Reader

NFS = b"""\
\topts:\trw,vers=4.2,rsize=1048576,hard,proto=tcp,sec=sys
\tage:\t1200
\tbytes:\t500 7 0 0 4096 512 1 1\x20
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 0 1 2 0 0 80 80 0 90 0 2 0 0
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 1 1 0
\t        READ: 40 43 0 9000 4096000 120 8000 8200 0
\t       WRITE: 0 0 0 0 0 0 0 0 0
\t        OPEN: 6 6 0 900 1200 0 12 12 0
\t OPEN_NOATTR: 2 2 0 300 400 0 4 4 0
\t    GETATTR: 10 10 0 2000 2400 18446744073709551610 30 40 0

"""


def test_reads_the_counters_of_an_nfs_mount() -> None:
    assert counted(NFS) == Counted(4096 + 512, 59, 120_000_000, 8047_000_000, 3, 8)
    assert counted(b"garbage\n") is None


def test_reads_the_counters_of_a_block_device() -> None:
    fields = [100, 2, 2048, 300, 50, 4, 1024, 700, 0, 900, 1000, 0, 0, 0, 0, 5, 6]
    assert disk([b"%d" % field for field in fields]) == Counted(512 * 3072, 150, 0, 1_000_000_000, 0)


def test_reads_what_the_interfaces_have_moved() -> None:
    zeros = b"0 " * 7
    rows = [(b"lo", 5000, 5000), (b"eth0", 9_000_000, 40_000), (b"eth1", 7, 0)]
    table = b"Inter-|   Receive  |  Transmit\n face |bytes  packets|bytes  packets\n"
    table += b"".join(b"%6s: %d %s%d %s\n" % (name, received, zeros, sent, zeros) for name, received, sent in rows)
    assert interfaces(table, inside=False) == Counted(9_040_007, 0, 0, 0, 0)
    assert interfaces(table, inside=True) == Counted(5000, 0, 0, 0, 0)
    assert interfaces(b"", inside=False) is None


@pytest.mark.parametrize(
    ("writes", "limit"),
    [(False, 8388608), (True, 0)],
)
def test_reads_the_limit_of_a_control_group_of_version_2(writes: bool, limit: int) -> None:
    text = "8:16 rbps=1 wbps=1 riops=max wiops=max\n8:0 rbps=8388608 wbps=max riops=120 wiops=max\n"
    assert io_max(text, "8:0", writes) == limit
    assert io_max(text, "9:0", writes) == 0


def test_reads_the_limit_of_a_control_group_of_version_1() -> None:
    assert throttle("7:0 8388608\n7:1 5\n", "7:0") == 8388608
    assert throttle("", "7:0") == 0


POD = "/kubepods.slice/kubepods-burstable.slice/pod1"


@pytest.mark.parametrize(
    ("limits", "least"),
    [
        ({f"{POD}/c1": "8:0 rbps=8388608 wbps=max riops=max wiops=max\n"}, 8388608),
        ({f"{POD}/c1": "8:0 rbps=8388608 wbps=max\n", POD: "8:0 rbps=4194304 wbps=max riops=120 wiops=max\n"}, 4194304),
        ({f"{POD}/c1": "8:16 rbps=8388608\n", "": ""}, 0),
        ({f"{POD}/c2": "8:0 rbps=8388608\n"}, 0),
    ],
    ids=["of the group", "of a group above it", "of another disk", "of another group"],
)
def test_the_least_limit_of_all_groups_of_version_2_counts(limits: dict[str, str], least: int, tmp_path: Path) -> None:
    """A tree as systemd and the kubelet make it: no group of version 1, and `io.max` in each group with limits."""
    (tmp_path / "cgroup").write_text(f"0::{POD}/c1\n")
    for group, text in limits.items():
        folder = tmp_path / "tree" / group.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "io.max").write_text(text)
    found = limit_of("8:0", writes=False, root=str(tmp_path / "tree"), groups=str(tmp_path / "cgroup"))
    assert found == ((least, LIMITS.index("io.max")) if least else (0, 0))


def test_a_process_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert limit_of("7:0", writes=False, root=str(tmp_path)) == (0, 0)


def test_looks_in_different_waits_say_nothing_about_the_time_between_them() -> None:
    words = memoryview(bytearray(8 * (max(AT.values()) + 64))).cast("q")
    rate, reader = Rate(words, Used(0, store("10.0.0.7:9000"))), Reader("/proc/self", "/proc/self")
    for now, kind, waited in [(10**9, 0, None), (11 * 10**8, 0, 7), (12 * 10**8, 1, 3), (13 * 10**8, 1, 2)]:
        rate.look(now, kind, waited, [reader], [], writes=True, syncs=True)
        assert not words[AT["measured_ns"]]
    rate.look(14 * 10**8, 1, 50, [reader], [], writes=True, syncs=True)
    assert words[AT["measured_ns"]] == 48


class Moving(Reader):
    """A reader whose calls have read this many bytes."""

    read = 0

    def moved(self, writes: bool) -> int:
        return self.read


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize(
    ("looks", "size", "measured", "beside"),
    [
        # (tenths of a second, bytes so far, how many are blocked; 0: nobody at any mount)
        ([(0, 0, 1), (5, 0, 1), (10, 0, 1), (15, 21, 1), (20, 21, 1)], 21, 15, 15),
        ([(0, 0, 1), (5, 0, 1), (10, 21, 1), (15, 21, 1), (20, 42, 1)], 42, 20, 20),
        ([(0, 0, 1), (5, 0, 1), (10, 0, 1)], 0, 0, 0),
        ([(0, 0, 1), (5, 0, 1), (10, 0, 0), (15, 21, 1), (20, 42, 1)], 21, 5, 5),
        ([(0, 0, 1), (5, 0, 1), (30, 0, 1), (35, 21, 1)], 21, 5, 5),
        ([(0, 0, 1), (5, 0, 2), (10, 0, 2), (15, 21, 2)], 21, 15, 0),
    ],
    ids=["one call", "two calls", "a call that nobody saw return", "two waits", "a long gap", "another reader"],
)
def test_the_bytes_of_a_long_call_count_for_all_of_its_time(
    looks: list[tuple[int, int, int]], size: int, measured: int, beside: int, writes: bool
) -> None:
    """A process counts the bytes of a call when it returns."""
    words = memoryview(bytearray(8 * (max(AT.values()) + 64))).cast("q")
    rate = Rate(words, Used(0, Mount("/mnt", "fuse", "server", "0:99")))
    first = Moving("", "")
    readers: list[Reader] = [first, Moving("", "")]
    for tenths, first.read, blocked in looks:
        if blocked:
            rate.look(10**10 + tenths * 10**8, 0, None, readers[:blocked], readers, writes=writes)
        else:
            rate.nobody()
    assert (words[AT["bytes"]], words[AT["measured_ns"]]) == (size, measured * 10**8)
    assert sum(words[AT["beside_ns"] : AT["beside_ns"] + SIDES]) == beside * 10**8


def test_the_time_of_fsync_counts_at_once() -> None:
    """The bytes count when they are written, before that."""
    words = memoryview(bytearray(8 * (max(AT.values()) + 64))).cast("q")
    rate, reader = Rate(words, Used(0, Mount("/mnt", "fuse", "server", "0:99"))), Moving("", "")
    for tenths, reader.read, syncs in [(0, 0, False), (5, 0, False), (10, 21, True), (15, 21, True), (20, 21, True)]:
        rate.look(10**10 + tenths * 10**8, 0, None, [reader], [reader], writes=True, syncs=syncs)
    assert (words[AT["bytes"]], words[AT["measured_ns"]]) == (21, 20 * 10**8)


def test_time_that_no_look_saw_counts_for_the_next_look() -> None:
    shares = Shares()
    assert shares.divide(100, 0) == [(0, 100)]
    assert shares.divide(100, 1) == []  # the books know of this wait only later
    assert shares.divide(100, -1) == []
    assert sorted(shares.divide(400, 1)) == [(1, 200)]
    assert sorted(shares.rest(500)) == [(0, 25), (1, 50)], "two of four looks since the start have found mount 1"
    assert shares.rest(300) == [(0, 0), (1, 0)]


@given(st.lists(st.tuples(st.integers(-50, 100), st.integers(-1, 3)), max_size=50))
def test_never_divides_more_than_the_loop_has_waited(looks: list[tuple[int, int]]) -> None:
    shares, total, most, divided = Shares(), 0, 0, 0
    for grown, found in looks:
        total = max(0, total + grown)
        most = max(most, total)
        divided += sum(ns for _, ns in shares.divide(total, found))
        assert divided <= most
    assert divided + sum(ns for _, ns in shares.rest(total)) <= most


def test_the_limit_is_that_of_what_most_looks_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control group may limit reads and writes of a mount to different rates."""
    monkeypatch.setattr(rates, "limit_of", lambda _device, *, writes: (4_000_000, 1) if writes else (8_000_000, 2))
    words = memoryview(bytearray(8 * (max(AT.values()) + 64))).cast("q")
    rate, reader = Rate(words, Used(0, store("10.0.0.7:9000"))), Reader("/proc/self", "/proc/self")
    limits = []
    for at, (looks, wrote) in enumerate([(1, 1), (2, 1), (3, 1), (4, 3)]):
        words[AT["looks"]], words[AT["write_looks"]] = looks, wrote
        rate.look(at * 10**8, 0, None, [reader], [], writes=at == 0)
        limits.append((words[AT["limit"]], words[AT["limit_by"]]))
    assert limits == [(4_000_000, 1), (8_000_000, 2), (8_000_000, 2), (4_000_000, 1)]
