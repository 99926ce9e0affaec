"""The collector `lustre`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fake_node import storage
from fake_node.routes import IPV4
from fake_node.storage import HOME, SCRATCH
from support_matrix import FAULTS, Anew, Series, check, files, read

from whyidle.agent.collector import Collector
from whyidle.agent.collectors.lustre import MOST_CONNECTIONS, MOST_FILE_SYSTEMS, LustreCollector
from whyidle.agent.files import Roots
from whyidle.agent.reading import Absent, Reading


@pytest.fixture
def root(tmp_path: Path) -> Path:
    storage.build(Roots(str(tmp_path / "proc"), str(tmp_path / "sys"), str(tmp_path)))
    (tmp_path / "proc/1/mountinfo").write_text(storage.MOUNTINFO)
    return tmp_path


def make(root: Path) -> LustreCollector:
    return LustreCollector(str(root / "proc"), str(root / "sys"))


def of(series: dict[Series, object], file_system: str) -> dict[object, object]:
    found = ((name.removeprefix("whyidle_lustre_"), labels, value) for (name, labels), value in series.items())
    return {
        name if len(labels) == 1 else (name, *labels[1:]): value
        for name, labels, value in found
        if labels[0] == file_system
    }


def test_exports_counters_with_durations_from_debugfs(root: Path) -> None:
    series, errors = read(make(root))
    assert not errors
    found = of(series, SCRATCH)
    assert found["info", "lscratch", "/lustre/scratch", "o2ib", ""] == 1
    assert found["reads_total"] == 812345
    assert found["read_bytes_total"] == 3407872123456
    assert found["written_bytes_total"] == 19155386368
    assert found["operation_calls_total", "open"] == 20202
    assert found["operation_seconds_total", "read"] == 4061.725
    assert found["operation_calls_total", "other"] == 5 + 4
    assert found["connections", "full"] == 2
    assert found["connections", "idle"] == 1
    assert found["connections", "disconn"] == 1


def test_exports_counters_of_old_versions_from_procfs(root: Path) -> None:
    found = of(read(make(root))[0], HOME)
    assert found["info", "lhome", "/lustre/home", "o2ib", ""] == 1
    assert found["read_bytes_total"] == 94371840
    assert found["writes_total"] == 109
    assert found["operation_calls_total", "fsync"] == 8
    assert found["operation_calls_total", "other"] == 5 + 1  # the pages of brw_read are not calls
    assert not [key for key in found if isinstance(key, tuple) and key[0] == "operation_seconds_total"]
    assert found["connections", "evicted"] == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_affects_only_its_own_series(root: Path, fault: str) -> None:
    def create() -> Collector:
        return Anew(lambda: make(root)) if fault in ("missing", "EINVAL") else make(root)

    for path in files(root / "proc/fs", root / "sys/kernel", root / "sys/fs/lustre"):
        file_system = HOME if HOME.rpartition("-")[2] in str(path) else SCRATCH

        def holds(series: Series, path: Path = path, file_system: str = file_system) -> bool:
            if series[1][0] != file_system or path.name == "blocksize":
                return False
            return (series[0] == "whyidle_lustre_connections") == (path.name == "import") and "_info" not in series[0]

        check(create, path, fault, holds, counted=path.name != "blocksize")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_mountinfo_affects_only_the_mount_point(root: Path, fault: str) -> None:
    def info(series: Series) -> bool:
        return series[0] == "whyidle_lustre_info"

    def create() -> Collector:
        return Anew(lambda: make(root)) if fault in ("missing", "EINVAL") else make(root)

    check(create, root / "proc/1/mountinfo", fault, info, comes=info)


def test_a_corrupt_line_affects_only_itself(root: Path) -> None:
    collector = make(root)
    before, _ = read(collector)
    stats = root / "sys/kernel/debug/lustre/llite" / SCRATCH / "stats"
    stats.write_text(storage.LLITE_215.replace("samples [bytes] 1 ", "four score and seven ", 1))
    during, errors = read(collector)
    lost = {(f"whyidle_lustre_{name}_total", (SCRATCH,)) for name in ("reads", "read_bytes")}
    assert before.keys() - during.keys() == lost
    assert list(errors) == [(SCRATCH, "llite stats", "garbage")]


def test_follows_file_systems_that_come_and_go(root: Path) -> None:
    collector = make(root)
    before, _ = read(collector)
    for folder in ("llite", "osc", "mdc"):
        (root / f"proc/fs/lustre/{folder}").rename(root / folder)
    without, errors = read(collector)
    assert {labels[0] for _, labels in without} == {SCRATCH}
    assert not errors
    for folder in ("llite", "osc", "mdc"):
        (root / folder).rename(root / f"proc/fs/lustre/{folder}")
    assert read(collector)[0] == before


def test_a_file_system_mounted_twice_has_no_mount_point(root: Path) -> None:
    llite = root / "sys/kernel/debug/lustre/llite"
    shutil.copytree(llite / SCRATCH, llite / "lscratch-ffff9bc0eeeeeeee")
    series, _ = read(make(root))
    info = {labels[0]: labels[2] for name, labels in series if name == "whyidle_lustre_info"}
    assert info == {SCRATCH: "", "lscratch-ffff9bc0eeeeeeee": "", HOME: "/lustre/home"}


@pytest.mark.parametrize(
    ("source", "protocol", "adapter"),
    [
        ("10.0.3.9@o2ib1:10.0.0.2@o2ib1:/lscratch", "o2ib", "ib0"),
        ("10.0.3.7@tcp,10.0.0.9@tcp:/lscratch/team", "tcp", "bond0.7"),
        ("mgs.cluster@tcp0:/lscratch", "tcp", ""),
        ("/lscratch", "", ""),
    ],
)
def test_names_the_network_and_the_adapter_to_the_first_server(
    source: str, protocol: str, adapter: str, root: Path
) -> None:
    mountinfo = storage.MOUNTINFO.replace("10.0.0.1@o2ib:10.0.0.2@o2ib:/lscratch", source)
    (root / "proc/1/mountinfo").write_text(mountinfo)
    (root / "proc/1/net").mkdir()
    (root / "proc/1/net/route").write_bytes(IPV4)
    series, errors = read(make(root))
    assert not errors
    ((_, labels),) = [one for one in series if one[0] == "whyidle_lustre_info" and one[1][0] == SCRATCH]
    assert labels[-2:] == (protocol, adapter)


def test_exports_nothing_on_a_node_without_lustre(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="Lustre"):
        make(tmp_path).collect(Reading())


@pytest.mark.parametrize("how", ["not mounted", "denied"])
def test_reports_an_invisible_debugfs(root: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "denied" and os.geteuid() != 0:
        pytest.skip("only root can give up its rights")
    debug = root / "sys/kernel/debug"
    root.chmod(0o755)
    monkeypatch.chdir(root)  # other users cannot enter the directories above
    if how == "denied":
        debug.chmod(0o700)
        os.seteuid(65534)
    else:
        shutil.rmtree(debug / "lustre")
    reading = Reading()
    try:
        make(Path()).collect(reading)
    finally:
        if how == "denied":
            os.seteuid(0)
    series = {(metric.name, labels) for metric, samples in reading.samples.items() for labels in samples}
    assert [name for name, labels in series if labels[0] == SCRATCH] == ["whyidle_lustre_info"]
    assert {labels[0] for _, labels in series} == {SCRATCH, HOME}
    assert {blind.what for blind in reading.blind_spots} == {"Lustre's counters"}
    assert not reading.errors


def test_number_of_file_systems_is_bounded(root: Path) -> None:
    old = root / "proc/fs/lustre"
    for number in range(MOST_FILE_SYSTEMS + 3):
        storage.write(old / f"llite/lhome-{number:08x}/stats", storage.LLITE_210)
    for number in range(MOST_CONNECTIONS + 1):
        storage.write(old / f"osc/lhome-OST{number:04x}-osc-00000001/import", "    state: FULL\n")
    reading = Reading()
    make(root).collect(reading)
    systems = {labels[0] for samples in reading.samples.values() for labels in samples}
    assert len(systems) == MOST_FILE_SYSTEMS
    assert not [metric for metric in reading.samples if metric.name == "whyidle_lustre_connections"]
    assert len(reading.blind_spots) == 2
