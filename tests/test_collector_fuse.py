"""The collector `fuse`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fake_node import storage
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


def test_requests_that_wait_by_file_system(root: Path) -> None:
    series, errors = read(make(root))
    assert not errors
    # One is mounted in a container alone, and one is on a disk, whose number has a major part.
    assert series == {(WAITING, OBJECTS): 3, (WAITING, ("0:95", "", "")): 0, (WAITING, ("8:17", "", "")): 1}


def test_file_systems_that_come_and_go(root: Path) -> None:
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
def test_a_file_spoilt_costs_itself_only(root: Path, fault: str) -> None:
    def holds(series: Series) -> bool:
        return series[1][0] == "0:81"

    path = root / "sys/fs/fuse/connections/81/waiting"
    check(lambda: make(root), path, fault, holds, counted=fault != "missing")


def test_without_its_mounts_a_file_system_has_its_number_alone(root: Path) -> None:
    (root / "proc/1/mountinfo").write_text("what is this\n")
    series, errors = read(make(root))
    assert series[WAITING, ("0:81", "", "")] == 3
    assert {(error.file, error.reason) for error in errors} == {("1/mountinfo", "garbage")}


@pytest.mark.parametrize("folder", ["sys/fs/fuse/connections", "sys/fs"])
def test_without_fuse_there_is_nothing(root: Path, folder: str) -> None:
    shutil.rmtree(root / folder)
    with pytest.raises(Absent):
        make(root).collect(Reading())
