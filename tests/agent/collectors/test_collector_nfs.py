"""The collector `nfs`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fake_node import storage
from fake_node.routes import IPV4, IPV6
from support_matrix import FAULTS, Anew, Series, check, read, spoilt

from whyidle.agent.collector import Collector
from whyidle.agent.collectors.nfs import MOST_MOUNTS, NfsCollector
from whyidle.agent.files import Roots
from whyidle.agent.reading import Absent, ReadError, Reading

DATA, SCRATCH = "/mnt/data sets", "/mnt/scratch"
BOUND = "/var/lib/kubelet/pods/0b1c/volumes/kubernetes.io~nfs/scratch"


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    roots = Roots(str(tmp_path / "proc"), str(tmp_path / "sys"), str(tmp_path))
    storage.build(roots)
    (tmp_path / "proc/1/mountinfo").write_text(storage.MOUNTINFO)
    return tmp_path / "proc"


def create_for(procfs: Path, fault: str) -> Collector:
    return Anew(lambda: NfsCollector(str(procfs))) if fault in ("missing", "EINVAL") else NfsCollector(str(procfs))


def of(series: dict[Series, object], mount: str) -> dict[object, object]:
    """The values of one mount, by the name of the metric or, for operations, by name and operation."""
    found = ((name.removeprefix("whyidle_nfs_"), labels, value) for (name, labels), value in series.items())
    return {
        name if len(labels) == 1 else (name, *labels[1:]): value for name, labels, value in found if labels[0] == mount
    }


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_exports_nfs_3(procfs: Path) -> None:
    series, errors = read(NfsCollector(str(procfs)))
    found = of(series, DATA)
    assert not errors
    assert found["info", "nfs1.cluster", "/export/data sets", "3", "tcp", "0:51", ""] == 1
    assert found["read_bytes_total"] == 5300000000
    assert found["server_read_bytes_total"] == 5242880000
    assert found["operation_requests_total", "read"] == 5000
    assert found["operation_queue_seconds_total", "read"] == 15.0
    assert found["operation_rtt_seconds_total", "read"] == 95.0
    assert found["operation_seconds_total", "read"] == 111.0
    assert found["operation_requests_total", "other"] == 33 + 2
    assert found["retransmissions_total"] == 1 + 12
    assert found["major_timeouts_total"] == 2
    assert found["connects_total"] == 2
    assert found["transport_idle_seconds"] == 13
    operations = {key[1] for key in found if isinstance(key, tuple) and key[0] == "operation_requests_total"}
    assert operations == {"read", "write", "commit", "getattr", "lookup", "other"}
    # Statistics 1.0 do not count errors.
    assert not [key for key in found if isinstance(key, tuple) and key[0] == "operation_errors_total"]


def test_exports_nfs_4_over_four_connections(procfs: Path) -> None:
    found = of(read(NfsCollector(str(procfs)))[0], SCRATCH)
    assert found["info", "[fd00::5]", "/scratch", "4.2", "tcp", "0:52", ""] == 1
    assert found["direct_read_bytes_total"] == 4096
    assert found["direct_written_bytes_total"] == 8192
    assert found["operation_requests_total", "open"] == 1200 + 34
    assert found["operation_requests_total", "close"] == 1234
    assert found["operation_errors_total", "open"] == 12
    assert found["operation_errors_total", "read"] == 7
    assert found["operation_requests_total", "other"] == 4 + 55 + 999
    assert found["transports"] == 4
    assert found["transport_sends_total"] == 20001 + 20002 + 20003 + 20004
    assert found["bad_xids_total"] == 2
    assert found["pending_requests_total"] == 10001 + 10002 + 10003 + 10004
    assert found["transport_idle_seconds"] == 3  # -1 stands for a transport that is not connected


def test_names_the_adapter_over_which_the_node_reaches_the_server(procfs: Path) -> None:
    (procfs / "1/net").mkdir()
    (procfs / "1/net/route").write_bytes(IPV4)
    (procfs / "1/net/ipv6_route").write_bytes(IPV6)
    series, errors = read(NfsCollector(str(procfs)))
    assert not errors
    adapters = {labels[0]: labels[-1] for name, labels in series if name == "whyidle_nfs_info"}
    assert adapters == {DATA: "bond0.7", SCRATCH: "ib1"}  # addr= of the mount, and an address as the server's name
    change(procfs / "1/mountinfo", ",addr=10.0.3.7", "")
    series, _ = read(NfsCollector(str(procfs)))
    assert {labels[0]: labels[-1] for name, labels in series if name == "whyidle_nfs_info"}[DATA] == ""


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "missing"])
def test_a_bad_table_of_routes_affects_only_the_adapter(procfs: Path, fault: str) -> None:
    (procfs / "1/net").mkdir()
    (procfs / "1/net/route").write_bytes(IPV4)
    with spoilt(procfs / "1/net/route", fault):
        series, _ = read(create_for(procfs, fault))
    assert [labels[-1] for name, labels in series if name == "whyidle_nfs_info"] == ["", ""]


def test_counts_a_file_system_mounted_twice_once(procfs: Path) -> None:
    series, _ = read(NfsCollector(str(procfs)))
    assert {labels[0] for _, labels in series} == {DATA, SCRATCH}
    change(procfs / "1/mountinfo", "90 22 0:52 /team", "90 22 0:53 /team")
    series, _ = read(NfsCollector(str(procfs)))
    assert {labels[0] for _, labels in series} == {DATA, SCRATCH, BOUND}


@pytest.mark.parametrize("fault", FAULTS)
def test_reports_a_bad_mountstats(procfs: Path, fault: str) -> None:
    def create() -> Collector:
        return create_for(procfs, fault)

    check(create, procfs / "1/mountstats", fault, lambda series: True)
    check(create, procfs / "self/mountstats", fault, lambda series: False, counted=False)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_mountinfo_affects_only_the_names(procfs: Path, fault: str) -> None:
    def info(series: Series) -> bool:
        return series[0] == "whyidle_nfs_info"

    check(
        lambda: create_for(procfs, fault),
        procfs / "1/mountinfo",
        fault,
        info,
        comes=lambda series: info(series) or series[1][0] == BOUND,
    )


@pytest.mark.parametrize(
    "old",
    [
        "\tbytes:\t5300000000",
        "\txprt:\ttcp 875 1",
        "\t        READ: 5000 5012",
        "\tper-op statistics\n\t        NULL: 0 0 0 0 0 0 0 0\n",
        "\tage:\t86400",
    ],
)
def test_a_corrupt_line_affects_only_its_mount(procfs: Path, old: str) -> None:
    collector = NfsCollector(str(procfs))
    before, _ = read(collector)
    change(procfs / "1/mountstats", old, "four score and seven\n")
    during, errors = read(collector)
    assert before.keys() - during.keys() == {series for series in before if series[1][0] == DATA}
    assert not during.keys() - before.keys()
    assert errors[ReadError(DATA, "1/mountstats", "garbage")] == 1


def test_a_mount_with_a_corrupt_first_line_is_not_counted_under_another_name(procfs: Path) -> None:
    change(procfs / "1/mountstats", "device nfs1.cluster", "evice nfs1.cluster")
    series, errors = read(NfsCollector(str(procfs)))
    assert {labels[0] for _, labels in series} == {SCRATCH}
    assert list(errors) == [ReadError("", "1/mountstats", "garbage")]


def test_follows_mounts_that_come_and_go(procfs: Path) -> None:
    collector = NfsCollector(str(procfs))
    whole = (procfs / "1/mountstats").read_text()
    before, _ = read(collector)
    change(procfs / "1/mountstats", storage.NFS_3, "")
    assert {labels[0] for _, labels in read(collector)[0]} == {SCRATCH}
    (procfs / "1/mountstats").write_text(storage.MOUNTSTATS_OF_CONTAINER)
    with pytest.raises(Absent, match="NFS mounts"):
        collector.collect(Reading())
    (procfs / "1/mountstats").write_text(whole)
    assert read(collector)[0] == before


def test_number_of_mounts_is_bounded(procfs: Path) -> None:
    block = storage.NFS_3.replace("data\\040sets mounted on /mnt/data\\040sets", "x mounted on /mnt/{}")
    (procfs / "1/mountstats").write_text("".join(block.replace("{}", str(n)) for n in range(MOST_MOUNTS + 5)))
    reading = Reading()
    NfsCollector(str(procfs)).collect(reading)
    assert {len({labels[0] for labels in samples}) for samples in reading.samples.values() if samples} == {MOST_MOUNTS}
    assert [blind.what for blind in reading.blind_spots] == ["some of the NFS mounts"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its rights")
@pytest.mark.parametrize("same", [True, False])
def test_reports_missing_rights_to_the_mounts_of_the_node(
    procfs: Path, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own mounts are read. It reports that it cannot see others only if there may be others."""
    (procfs / "self/mountstats").write_text(storage.MOUNTSTATS_OF_CONTAINER + storage.NFS_3)
    first = storage.MOUNTINFO if same else "9" + storage.MOUNTINFO
    (procfs / "self/mountinfo").write_text(first)
    (procfs / "1/mountstats").chmod(0o400)
    monkeypatch.chdir(procfs)  # other users cannot enter pytest's directories
    reading = Reading()
    os.seteuid(65534)
    try:
        NfsCollector(".").collect(reading)
    finally:
        os.seteuid(0)
    assert {labels[0] for samples in reading.samples.values() for labels in samples} == {DATA}
    assert not reading.errors
    assert [blind.what for blind in reading.blind_spots] == ([] if same else ["NFS mounts other than the agent's own"])


def test_reads_its_own_mounts_where_proc_hides_process_1(procfs: Path) -> None:
    """hidepid=2: it seems not to exist."""
    (procfs / "self/mountstats").write_text(storage.MOUNTSTATS_OF_CONTAINER + storage.NFS_3)
    (procfs / "self/mountinfo").write_text(storage.MOUNTINFO)
    shutil.rmtree(procfs / "1")
    reading = Reading()
    NfsCollector(str(procfs)).collect(reading)
    assert {labels[0] for samples in reading.samples.values() for labels in samples} == {DATA}
    assert not reading.errors
    assert [blind.what for blind in reading.blind_spots] == ["NFS mounts other than the agent's own"]


def test_reads_this_machine() -> None:
    _, errors = read(NfsCollector("/proc"))
    assert not errors
