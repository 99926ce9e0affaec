"""File systems of ranks: found from their open and mapped files, with their free space, even if a mount hangs."""

from __future__ import annotations

import mmap
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import support_ranks
from fake_node import processes as fake
from hypothesis import given
from hypothesis import strategies as st
from support_hang import hung_mount, may_mount
from support_ledgers import Spec, children, until
from support_matrix import FAULTS, Series, read, spoilt
from support_ranks import Scrapes

from whyidle.agent.collectors.filesystem import create
from whyidle.agent.files import Roots, Unreadable
from whyidle.agent.metrics.filesystem import METRICS
from whyidle.agent.processes import rank_files
from whyidle.agent.reading import Absent, ReadError, Reading
from whyidle.linux import mountinfo
from whyidle.linux.mountinfo import Mount, OpenFile

PREFIX = "whyidle_filesystem_"
RANK = Path(support_ranks.__file__)
NFS = ("/mnt/data sets", "nfs", "nfs1.cluster:/export/data sets", "0:51")
LUSTRE = ("/lustre/scratch", "lustre", "10.0.0.1@o2ib:10.0.0.2@o2ib:/lscratch", "0:71")
LOCAL = ("/mnt/local", "ext4", "/dev/nvme0n1p1", "nvme0n1")


def uses(series: dict[Series, object], rank: int = 0) -> set[tuple[str, ...]]:
    """The file systems of a rank and what it uses them for, if known."""
    return {
        labels[3:]
        for (name, labels) in series
        if name == f"{PREFIX}rank_info" and labels[:3] == ("lab", "r1", str(rank))
    }


def space(series: dict[Series, object]) -> set[tuple[str, ...]]:
    return {labels for name, labels in series if name == f"{PREFIX}size_bytes"}


def scrape_until(scrapes: Scrapes, wanted: Callable[[dict[Series, object]], bool]) -> dict[Series, object]:
    """Scrapes repeatedly, because processes are sampled in turn."""
    return until(lambda: [series for series, _ in [read(scrapes)] if wanted(series)])[0]


def test_finds_file_systems_of_open_and_mapped_files(ledgers: Path, roots: Roots) -> None:
    scrapes = Scrapes(create, ledgers, roots)
    everything = {(*NFS, "read"), (*LUSTRE, "write"), (*LOCAL, "read")}
    # A worker has the data open, the main process has everything else.
    series = scrape_until(scrapes, lambda series: uses(series, 0) == uses(series, 1) == everything)
    assert space(series) == {NFS, LUSTRE, LOCAL}
    assert {name for name, _ in series} == {metric.name for metric in METRICS}
    here = os.statvfs(roots.rootfs)
    assert series[f"{PREFIX}size_bytes", NFS] == here.f_blocks * here.f_frsize
    assert series[f"{PREFIX}readonly", NFS] == int(bool(here.f_flag & os.ST_RDONLY))


def test_counts_open_files_on_network_file_systems(ledgers: Path, roots: Roots) -> None:
    def opened(series: dict[Series, object]) -> dict[tuple[str, ...], object]:
        return {labels[3:]: value for (name, labels), value in series.items() if "open_files" in name and "0" in labels}

    scrapes = Scrapes(create, ledgers, roots)
    # Each of three workers has a shard open, and the main process has a log and a checkpoint open.
    scrape_until(scrapes, lambda series: opened(series) == {NFS: 3, LUSTRE: 2})
    for pid in (4100, 4101, 4102):
        for descriptor in Path(roots.procfs, str(pid), "fd").iterdir():
            descriptor.unlink()
    # What is remembered about a mount does not count as open on it.
    scrape_until(scrapes, lambda series: opened(series) == {NFS: 1, LUSTRE: 0})


@pytest.mark.parametrize(
    ("fstype", "network"),
    [("nfs4", True), ("ceph", True), ("fuse.gcsfuse", True), ("fuse.lxcfs", False), ("fuseblk", False), ("xfs", False)],
)
def test_recognises_network_file_systems_by_type(fstype: str, network: bool) -> None:
    assert mountinfo.is_network(fstype) is network


def test_exports_nothing_without_a_rank(tmp_path: Path) -> None:
    with pytest.raises(Absent):
        Scrapes(create, tmp_path).collect(Reading())


def test_forgets_a_file_system_that_was_not_seen_for_long(
    ledgers: Path, roots: Roots, monkeypatch: pytest.MonkeyPatch
) -> None:
    scrapes = Scrapes(create, ledgers, roots)
    until(lambda: (*LUSTRE, "write") in uses(read(scrapes)[0]))
    for pid in fake.RANKS:
        for descriptor in (1, 7):
            Path(roots.procfs, str(pid), "fd", str(descriptor)).unlink()
    for _ in range(3 * rank_files.REMEMBERED_LOOKS):
        assert (*LUSTRE, "write") in uses(read(scrapes)[0])
    monkeypatch.setattr(rank_files, "REMEMBERED_SECONDS", 0.0)
    series = scrape_until(scrapes, lambda series: (*LUSTRE, "write") not in uses(series, 0) | uses(series, 1))
    assert LUSTRE not in space(series)


def test_a_rank_in_a_checkpoint_is_looked_at_first(tmp_path: Path, roots: Roots) -> None:
    first, second = fake.specs()
    second.phase = "checkpoint"
    for pid in (4100, 4200):  # each of them is enough for one scrape
        for number in range(100, 100 + rank_files.LINKS):
            Path(roots.procfs, str(pid), "fd", str(number)).symlink_to("socket:[1]")
    with children(tmp_path / "ledgers", first, second):
        scrapes = Scrapes(create, tmp_path / "ledgers", roots)
        series, _ = read(scrapes)
        assert (*LUSTRE, "write") in uses(series, 1)
        assert not uses(series, 0)


def test_number_of_files_and_mounts_is_bounded(ledgers: Path, roots: Roots) -> None:
    folder = Path(roots.procfs, "4100")
    lines = [f"{2000 + n} 1001 0:{200 + n} / /mnt/{n} rw - nfs server:/{n} rw" for n in range(400)]
    (folder / "mountinfo").write_text("\n".join(lines) + "\n")
    (folder / "maps").write_text("")
    shutil.rmtree(folder / "fd")
    (folder / "fd").mkdir()
    for n in range(400):
        (folder / "fd" / str(n)).symlink_to(f"/mnt/{n}/file")
        (folder / "fdinfo" / str(n)).write_text(f"pos:\t0\nflags:\t0100002\nmnt_id:\t{2000 + n}\n")
    (folder / "ns/mnt").unlink()
    (folder / "ns/mnt").symlink_to("mnt:[99]")
    scrapes = Scrapes(create, ledgers, roots)
    until(lambda: uses(read(scrapes)[0]))
    for _ in range(20):
        assert 0 < len(uses(read(scrapes)[0])) <= rank_files.USES_PER_RANK


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("file", ["fdinfo/7", "mountinfo", "maps"])
def test_a_bad_file_affects_only_its_rank(ledgers: Path, roots: Roots, file: str, fault: str) -> None:
    scrapes = Scrapes(create, ledgers, roots)
    path = Path(roots.procfs, "4100", file)
    # The two ranks run in their own mount namespaces.
    (path.parent if file != "fdinfo/7" else path.parent.parent).joinpath("ns/mnt").unlink()
    Path(roots.procfs, "4100/ns/mnt").symlink_to("mnt:[99]")
    everything = {(*NFS, "read"), (*LUSTRE, "write"), (*LOCAL, "read")}
    errors: set[ReadError] = set()

    def rest_is_there() -> bool:
        series, now = read(scrapes)
        errors.update(now)
        return uses(series, 1) == everything

    with spoilt(path, fault):
        until(rest_is_there)
        for _ in range(4):
            assert rest_is_there()
    # A missing process has ended, or has closed the file. Lines of maps that make no sense are skipped.
    silent = fault == "missing" or (file == "maps" and fault not in ("huge", "EINVAL"))
    assert {error.device for error in errors} == (set() if silent else {"lab/r1/0"})


def test_an_unreadable_file_system_affects_only_itself(ledgers: Path, roots: Roots) -> None:
    scrapes = Scrapes(create, ledgers, roots)
    until(lambda: space(read(scrapes)[0]) == {NFS, LUSTRE, LOCAL})
    shutil.rmtree(Path(roots.rootfs, "run/container/lustre/scratch"))
    series, errors = read(scrapes)
    assert space(series) == {NFS, LOCAL}
    assert [tuple(error) for error in errors] == [("/lustre/scratch", "statvfs", "missing")]
    Path(roots.rootfs, "run/container/lustre/scratch").mkdir()
    assert space(read(scrapes)[0]) == {NFS, LUSTRE, LOCAL}


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root: a FUSE mount that hangs")
def test_a_hung_mount_affects_only_itself_and_one_thread(ledgers: Path, roots: Roots) -> None:
    point = Path(roots.rootfs, "run/container/mnt/data sets")
    if not may_mount(point):
        pytest.skip("needs root: a FUSE mount that hangs")
    scrapes = Scrapes(create, ledgers, roots)
    until(lambda: space(read(scrapes)[0]) == {NFS, LUSTRE, LOCAL})
    with hung_mount(point):
        threads = threading.active_count()
        for _ in range(5):
            series, errors = read(scrapes)
            assert space(series) == {LUSTRE, LOCAL}
            assert (*NFS, "read") in uses(series)  # the path of the data is still known
            assert [tuple(error) for error in errors] == [("/mnt/data sets", "statvfs", "hung")]
            assert threading.active_count() <= threads + 1
    until(lambda: space(read(scrapes)[0]) == {NFS, LUSTRE, LOCAL})
    until(lambda: threading.active_count() <= threads)


def test_probes_of_ranks_that_ended_are_closed(roots: Roots, tmp_path: Path) -> None:
    directory = tmp_path / "ledgers"
    scrapes = Scrapes(create, directory, roots)
    before = threading.active_count()
    with children(directory, *fake.specs()):
        until(lambda: space(read(scrapes)[0]) == {NFS, LUSTRE, LOCAL})
    assert not read(scrapes)[0]
    until(lambda: threading.active_count() == before)


# Real processes


def test_reads_a_real_rank(tmp_path: Path) -> None:
    data, checkpoint = tmp_path / "data 1", tmp_path / "checkpoint"
    data.touch()
    mounts, _ = mountinfo.mounts(Path("/proc/self/mountinfo").read_bytes())
    here = mountinfo.mount_of(str(tmp_path), mounts)
    assert here is not None
    if here.fstype == "tmpfs":
        pytest.skip("the temporary directory is in memory")
    with children(tmp_path / "ledgers", Spec(), script=RANK) as (rank,):
        scrapes = Scrapes(create, tmp_path / "ledgers")
        stdin, stdout = rank.process.stdin, rank.process.stdout
        assert stdin is not None
        assert stdout is not None

        def tell(order: str) -> None:
            stdin.write(order + "\n")
            stdin.flush()
            stdout.readline()

        def hows(series: dict[Series, object]) -> set[str]:
            return {use[4] for use in uses(series) if use[:3] == (here.point, here.fstype, here.source)}

        tell(f"start f = open({str(data)!r})")
        scrape_until(scrapes, lambda series: "read" in hows(series))
        tell(f"run globals().update(kept=open({str(checkpoint)!r}, 'w'))")
        scrape_until(scrapes, lambda series: hows(series) == {"read", "write"})


def test_reads_a_real_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "index 1.bin"
    path.write_bytes(b"x" * mmap.PAGESIZE)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    found = mountinfo.mapped_files(Path("/proc/self/maps").read_bytes())
    mapped.close()
    assert found[str(path)] is False
    assert not [name for name in found if name.endswith(".so")]


# Formats


def test_parses_mounts() -> None:
    found, bad = mountinfo.mounts((fake.MOUNTINFO + "what is this\n").encode())
    assert bad == 1
    assert found[1005] == Mount(*NFS)
    assert mountinfo.mount_of("/mnt/data sets/a", found) == Mount(*NFS)
    assert mountinfo.mount_of("/mnt/data setsuma", found) == found[1001]
    assert mountinfo.mount_of("/mnt/data sets", found) == Mount(*NFS)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (os.O_RDONLY, OpenFile(7, reads=True, writes=False)),
        (os.O_WRONLY | os.O_CREAT, OpenFile(7, reads=False, writes=True)),
        (os.O_RDWR | os.O_CLOEXEC, OpenFile(7, reads=True, writes=True)),
        (os.O_RDONLY | os.O_DIRECTORY, None),
        (os.O_PATH, None),
    ],
)
def test_parses_open_files(flags: int, expected: OpenFile | None) -> None:
    assert mountinfo.open_file(f"pos:\t0\nflags:\t0{flags:o}\nmnt_id:\t7\nino:\t3\n".encode()) == expected


@given(st.one_of(st.binary(max_size=300), st.text("0123456789 :-/\\\nrwxps", max_size=200).map(str.encode)))
def test_parsers_raise_only_unreadable(data: bytes) -> None:
    mounts, _ = mountinfo.mounts(b"x\n" + data)
    for mount in mounts.values():
        assert mount.point.isprintable()
    for path in mountinfo.mapped_files(data):
        mountinfo.mount_of(path, mounts)
    try:
        mountinfo.open_file(data)
    except Unreadable:
        return
