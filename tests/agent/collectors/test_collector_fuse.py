"""The collector `fuse`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_node import storage
from support_bottlenecks_disks import missing, slow_folder
from support_ledgers import until
from support_matrix import FAULTS, Series, check, read

from whyidle.agent.collectors.fuse import FuseCollector
from whyidle.agent.files import Roots
from whyidle.agent.reading import Absent, Reading

WAITING = "whyidle_fuse_waiting_requests"
OBJECTS = ("0:81", "fuse.gcsfuse", "/mnt/objects")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    storage.build(Roots(str(tmp_path / "proc"), str(tmp_path / "sys"), str(tmp_path)))
    (tmp_path / "proc/1/mountinfo").write_text(storage.MOUNTINFO)
    return tmp_path


def make(root: Path) -> FuseCollector:
    return FuseCollector(str(root / "proc"), str(root / "sys"))


def test_exports_waiting_requests_by_file_system(root: Path) -> None:
    series, errors = read(make(root))
    assert not errors
    # One is mounted only in a container, and one is on a disk, whose number has a major part.
    assert series == {(WAITING, OBJECTS): 3, (WAITING, ("0:95", "", "")): 0, (WAITING, ("8:17", "", "")): 1}


def test_follows_file_systems_that_come_and_go(root: Path) -> None:
    collector = make(root)
    connections = root / "sys/fs/fuse/connections"
    assert len(read(collector)[0]) == 3
    shutil.rmtree(connections / "81")
    series, errors = read(collector)
    assert not errors
    assert {labels[0] for _, labels in series} == {"0:95", "8:17"}
    storage.write(connections / "81/waiting", "0\n")
    assert read(collector)[0][WAITING, OBJECTS] == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_affects_only_its_own_series(root: Path, fault: str) -> None:
    def holds(series: Series) -> bool:
        return series[1][0] == "0:81"

    path = root / "sys/fs/fuse/connections/81/waiting"
    check(lambda: make(root), path, fault, holds, counted=fault != "missing")


def test_a_file_system_without_mounts_has_only_its_number(root: Path) -> None:
    (root / "proc/1/mountinfo").write_text("what is this\n")
    series, errors = read(make(root))
    assert series[WAITING, ("0:81", "", "")] == 3
    assert {(error.file, error.reason) for error in errors} == {("1/mountinfo", "garbage")}


@pytest.mark.parametrize("folder", ["sys/fs/fuse/connections", "sys/fs"])
def test_exports_nothing_without_fuse(root: Path, folder: str) -> None:
    shutil.rmtree(root / folder)
    with pytest.raises(Absent):
        make(root).collect(Reading())


_INSIDE = """
mount -t sysfs none /mnt && mount -t fusectl none /mnt/fs/fuse/connections
exec "$@"
"""
_COLLECT = """
import json, sys
from whyidle.agent.collectors.fuse import FuseCollector
from whyidle.agent.reading import Reading
collector = FuseCollector("/proc", "/mnt")
for line in sys.stdin:
    reading = Reading()
    collector.collect(reading)
    samples = [(labels, value) for found in reading.samples.values() for labels, value in found.items()]
    print(json.dumps([samples, reading.errors]), flush=True)
"""


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Path]:
    """A real FUSE file system with one file, each read of which takes a second."""
    if lacks := "needs root" if os.getuid() else missing():
        pytest.skip(lacks)
    if subprocess.run(["unshare", "--mount", "sh", "-ec", _INSIDE, "sh", "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount fusectl")
    (tmp_path / "below").mkdir()
    (tmp_path / "below/shard").write_bytes(bytes(1 << 20))
    with slow_folder(tmp_path / "below", tmp_path / "at", read_ms=1000, cached=False) as at:
        yield at


def test_counts_a_read_that_a_real_daemon_has_not_answered(slow: Path) -> None:
    device = f"0:{os.minor(slow.stat().st_dev)}"
    command = ["unshare", "--mount", "sh", "-ec", _INSIDE, "sh", sys.executable, "-c", _COLLECT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        stdin, stdout = agent.stdin, agent.stdout
        assert stdin
        assert stdout

        def waiting() -> float:
            stdin.write("\n")
            stdin.flush()
            samples, errors = json.loads(stdout.readline())
            assert not errors
            return next(value for labels, value in samples if labels[0] == device)

        assert waiting() == 0
        reader = subprocess.Popen(["cat", str(slow / "shard")], stdout=subprocess.DEVNULL)
        try:
            until(lambda: waiting() >= 1)
        finally:
            reader.kill()
            reader.wait()
        until(lambda: waiting() == 0)
        stdin.close()
