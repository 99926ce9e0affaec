"""The collector `pressure`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fake_node import cpu
from support_matrix import FAULTS, Anew, check, read

from whyidle.agent.collector import Collector
from whyidle.agent.collectors.pressure import PressureCollector
from whyidle.agent.files import Roots
from whyidle.agent.reading import Reading


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cpu.build(Roots(str(tmp_path)))
    return tmp_path / "pressure"


def test_exports_stalled_seconds(folder: Path) -> None:
    series, errors = read(PressureCollector(str(folder)))
    assert not errors
    assert {labels: value for (_, labels), value in series.items()} == {
        ("cpu", "some"): 2810.988259,
        ("io", "some"): 85.464804,
        ("io", "full"): 54.771052,
        ("memory", "some"): 1.000001,
        ("memory", "full"): 0.500002,
        ("irq", "full"): 0.033003,
    }


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_affects_only_its_own_series(folder: Path, fault: str) -> None:
    def create() -> Collector:
        if fault in ("missing", "EINVAL"):
            return Anew(lambda: PressureCollector(str(folder)))
        return PressureCollector(str(folder))

    for resource in cpu.PRESSURE:
        counted = not (resource == "irq" and fault == "missing")
        check(
            create,
            folder / resource,
            fault,
            lambda series, resource=resource: series[1][0] == resource,
            counted=counted,
        )


def test_reports_a_corrupt_line(folder: Path) -> None:
    (folder / "io").write_text("some avg10=0.26 avg60=0.73 avg300=1.21 total=-1\n")
    series, errors = read(PressureCollector(str(folder)))
    assert list(errors) == [("io", "pressure", "garbage")]
    assert len(series) == 4


def test_says_what_to_do_on_a_kernel_without_pressure(folder: Path) -> None:
    shutil.rmtree(folder)
    reading = Reading()
    PressureCollector(str(folder)).collect(reading)
    assert [blind.remedy for blind in reading.blind_spots] == ["boot a kernel built with CONFIG_PSI with psi=1"]
    assert not reading.samples
    assert not reading.errors


def test_says_what_to_do_if_pressure_is_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of this machine fails with EOPNOTSUPP, so the system call is replaced."""
    pread = os.pread

    def refusing(fd: int, length: int, offset: int) -> bytes:
        if os.path.realpath(f"/proc/self/fd/{fd}").startswith(str(folder)):
            raise OSError(95, "Operation not supported")
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", refusing)
    reading = Reading()
    PressureCollector(str(folder)).collect(reading)
    assert {blind.why for blind in reading.blind_spots} == {"it is switched off"}
    assert not reading.samples
    assert not reading.errors


def test_reads_this_machine() -> None:
    if not os.path.isdir("/proc/pressure"):
        pytest.skip("this kernel has no /proc/pressure")
    reading = Reading()
    PressureCollector("/proc/pressure").collect(reading)
    assert not reading.errors
    assert reading.samples or reading.blind_spots
