"""The collector `disk`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fake_node import storage
from support_matrix import FAULTS, Anew, Series, check, read

from whyidle.agent.collector import Collector
from whyidle.agent.collectors.disk import MOST_DISKS, DiskCollector
from whyidle.agent.files import Roots
from whyidle.agent.reading import Reading

DISKS = {"sda", "nvme0n1", "nvme0c0n1", "dm-0", "md0", "mmcblk0", "xvda1"}


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    roots = Roots(str(tmp_path / "proc"), str(tmp_path / "sys"), str(tmp_path))
    storage.build(roots)
    return roots


def make(roots: Roots) -> DiskCollector:
    return DiskCollector(roots.procfs, roots.sysfs)


def of(series: dict[Series, object], device: str) -> dict[str, object]:
    """The values of one disk."""
    return {
        name.removeprefix("whyidle_disk_"): value for (name, labels), value in series.items() if labels[0] == device
    }


def rewrite(roots: Roots, old: str, new: str) -> None:
    path = Path(roots.procfs, "diskstats")
    text = path.read_text()
    assert re.search(old, text, re.M)
    path.write_text(re.sub(old, new, text, flags=re.M))


def test_exports_whole_disks_in_base_units(roots: Roots) -> None:
    series, errors = read(make(roots))
    assert {labels[0] for _, labels in series} == DISKS
    assert not errors
    assert of(series, "nvme0n1") == {
        "info": 1,
        "reads_total": 3001001,
        "reads_merged_total": 11,
        "read_bytes_total": 768256256 * 512,
        "read_seconds_total": 5005.005,
        "writes_total": 2002002,
        "writes_merged_total": 22,
        "written_bytes_total": 512512512 * 512,
        "write_seconds_total": 4004.004,
        "in_flight_requests": 17,
        "io_seconds_total": 6006.006,
        "io_weighted_seconds_total": 9009.009,
        "discards_total": 707,
        "discarded_bytes_total": 808 * 512,
        "discard_seconds_total": 0.09,
        "flushes_total": 1010,
        "flush_seconds_total": 0.111,
    }
    assert "flushes_total" not in of(series, "xvda1")
    assert "discards_total" in of(series, "xvda1")
    assert "discards_total" not in of(series, "mmcblk0")


def test_exports_what_kind_of_disk_it_is(roots: Roots) -> None:
    series, _ = read(make(roots))
    info = {labels[0]: labels[1:] for name, labels in series if name == "whyidle_disk_info"}
    assert info["sda"] == ("disk", "", "PERC H755 Front", "1")
    assert info["nvme0n1"] == ("disk", "", "Micron_9300_MTFDHAL7T6TDP", "0")
    assert info["dm-0"] == ("dm", "vg0-scratch", "", "1")
    assert info["md0"] == ("md", "", "", "0")
    assert info["xvda1"] == ("disk", "", "", "")  # nothing under /sys


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_affects_only_its_own_series(roots: Roots, fault: str) -> None:
    def create() -> Collector:
        return Anew(lambda: make(roots)) if fault in ("missing", "EINVAL") else make(roots)

    counted = fault != "empty"  # a node without disks
    check(create, Path(roots.procfs, "diskstats"), fault, lambda series: True, counted=counted)
    for disk, attributes in storage.BLOCK.items():

        def info(series: Series, disk: str = disk) -> bool:
            return series[0] == "whyidle_disk_info" and series[1][0] == disk

        for file in attributes:
            path = Path(roots.sysfs, "block", disk, file)
            if disk not in DISKS or file == "md/level":  # not read
                check(create, path, fault, lambda series: False, counted=False)
            else:
                any_word = fault == "garbage" and file != "queue/rotational"
                check(create, path, fault, info, comes=info, counted=not (any_word or fault == "missing"))


def test_reports_an_attribute_that_disappeared(roots: Roots) -> None:
    collector = make(roots)
    read(collector)
    model = Path(roots.sysfs, "block/sda/device/model")
    model.write_text("\n")
    assert list(read(collector)[1]) == [("sda", "device/model", "empty")]
    model.unlink()  # its file was closed when it could not be read
    assert list(read(collector)[1]) == [("sda", "device/model", "missing")]
    assert not read(make(roots))[1]


@pytest.mark.parametrize(
    "line", ["four score and seven", "   8       0 sda 1 2 N/A 4 5 6 7 8 9 10 11", "\x00\xff" * 30]
)
def test_a_corrupt_line_affects_only_its_disk(roots: Roots, line: str) -> None:
    collector = make(roots)
    before, _ = read(collector)
    rewrite(roots, r"^.* sda .*$", line.replace("\\", r"\\"))
    during, errors = read(collector)
    assert before.keys() - during.keys() == {series for series in before if series[1][0] == "sda"}
    assert sum(errors.values()) == 1
    (error,) = errors
    assert (error.file, error.reason) == ("diskstats", "garbage")
    assert error.device == ("sda" if "sda" in line else "")


def test_times_continue_beyond_32_bits(roots: Roots) -> None:
    collector = make(roots)
    before = of(read(collector)[0], "sda")
    assert before["read_seconds_total"] == 4294960.0
    rewrite(roots, "(?<= sda 184523 20571 9876543 )4294960000", "40000")
    rewrite(roots, "(?<= 123456 )4294960001", "1000")
    after = of(read(collector)[0], "sda")
    assert after["read_seconds_total"] == ((1 << 32) + 40000) / 1000
    assert after["io_weighted_seconds_total"] == ((1 << 32) + 1000) / 1000
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"read_seconds_total", "io_weighted_seconds_total"}


def test_wraps_are_kept_over_a_line_that_was_corrupt_once(roots: Roots) -> None:
    collector = make(roots)
    read(collector)
    rewrite(roots, "(?<= sda 184523 20571 9876543 )4294960000", "40000")
    expected = of(read(collector)[0], "sda")["read_seconds_total"]
    rewrite(roots, " sda 184523 ", " sda N/A ")
    assert not of(read(collector)[0], "sda")
    rewrite(roots, " sda N/A ", " sda 184523 ")
    assert of(read(collector)[0], "sda")["read_seconds_total"] == expected


def test_follows_disks_that_come_and_go(roots: Roots) -> None:
    collector = make(roots)
    before, _ = read(collector)
    text = Path(roots.procfs, "diskstats").read_text()
    rewrite(roots, r"^.* nvme0n1(p1)? .*\n", "")
    storage.write(Path(roots.sysfs, "block/nvme0n1/device/model"), "Another\n")
    without, errors = read(collector)
    assert {labels[0] for _, labels in without} == DISKS - {"nvme0n1"}
    Path(roots.procfs, "diskstats").write_text(text)
    again, more = read(collector)
    assert ("whyidle_disk_info", ("nvme0n1", "disk", "", "Another", "0")) in again
    assert len(again) == len(before)
    assert not errors + more


def test_an_unused_disk_appears_with_its_first_request(roots: Roots) -> None:
    collector = make(roots)
    read(collector)
    rewrite(roots, r" sdb 0 0 0 0 ", " sdb 1 0 8 1 ")
    assert of(read(collector)[0], "sdb")["read_bytes_total"] == 4096


def test_number_of_disks_is_bounded(roots: Roots) -> None:
    lines = [f" 8 {number} nvme{number}n1 1 2 3 4 5 6 7 8 9 10 11\n" for number in range(MOST_DISKS + 9)]
    Path(roots.procfs, "diskstats").write_text("".join(lines))
    reading = Reading()
    make(roots).collect(reading)
    assert {len(samples) for samples in reading.samples.values() if samples} == {MOST_DISKS}
    assert [blind.what for blind in reading.blind_spots] == ["some of the disks"]


def test_reads_this_machine() -> None:
    _, errors = read(DiskCollector("/proc", "/sys"))
    assert not errors
