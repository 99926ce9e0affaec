"""The collector `memory`."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_node import cpu
from support_matrix import FAULTS, Anew, check, read

from whyidle.agent.collector import Collector
from whyidle.agent.collectors.memory import MemoryCollector
from whyidle.agent.files import Roots
from whyidle.agent.metrics.memory import MEMINFO, PAGE_BYTES, STALLS, VMSTAT


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    cpu.build(Roots(str(tmp_path)))
    return tmp_path


def values(procfs: Path) -> dict[str, object]:
    series, _ = read(MemoryCollector(str(procfs)))
    return {name.removeprefix("whyidle_memory_"): value for (name, _), value in series.items()}


def test_exports_levels_and_counts(procfs: Path) -> None:
    assert values(procfs) == {
        "total_bytes": 1056476672 * 1024,
        "available_bytes": 903000003 * 1024,
        "free_bytes": 201000001 * 1024,
        "cached_bytes": 705000005 * 1024,
        "dirty_bytes": 909009 * 1024,
        "writeback_bytes": 10010 * 1024,
        "shared_bytes": 13131313 * 1024,
        "anonymous_bytes": 60011011 * 1024,
        "swap_total_bytes": 8388604 * 1024,
        "swap_free_bytes": 8388000 * 1024,
        "major_faults_total": 54177,
        "oom_kills_total": 2,
        "swapped_in_bytes_total": 21 * PAGE_BYTES,
        "swapped_out_bytes_total": 151 * PAGE_BYTES,
        "refaulted_bytes_total": 9336417 * PAGE_BYTES,
        "direct_scanned_bytes_total": 9900 * PAGE_BYTES,
        "allocation_stalls_total": 321,
    }


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_affects_only_its_own_series(procfs: Path, fault: str) -> None:
    def create() -> Collector:
        if fault in ("missing", "EINVAL"):
            return Anew(lambda: MemoryCollector(str(procfs)))
        return MemoryCollector(str(procfs))

    for file, metrics in (("meminfo", MEMINFO.values()), ("vmstat", (*VMSTAT.values(), STALLS))):
        names = {metric.name for metric in metrics}
        check(create, procfs / file, fault, lambda series, names=names: series[0] in names)


@pytest.mark.parametrize(
    ("file", "line", "spoilt", "metric"),
    [
        ("meminfo", "Dirty:            909009 kB", "Dirty:            909009 MB", "dirty_bytes"),
        ("meminfo", "Shmem:          13131313 kB", "Shmem:          1313 1313 kB", "shared_bytes"),
        ("vmstat", "oom_kill 2", "oom_kill -2", "oom_kills_total"),
        ("vmstat", "allocstall_normal 20", "allocstall_normal twenty", "allocation_stalls_total"),
    ],
)
def test_a_corrupt_line_affects_only_its_value(procfs: Path, file: str, line: str, spoilt: str, metric: str) -> None:
    before = values(procfs)
    path = procfs / file
    path.write_text(path.read_text().replace(line, spoilt))
    assert before.keys() - values(procfs).keys() == {metric}
    _, errors = read(MemoryCollector(str(procfs)))
    assert [(error.file.split(",")[0], error.reason) for error in errors] == [(file, "garbage")]


def test_works_on_kernels_that_lack_a_line(procfs: Path) -> None:
    path = procfs / "vmstat"
    path.write_text("pgmajfault 5\nallocstall 7\n")
    found = values(procfs)
    assert found["major_faults_total"] == 5
    assert found["allocation_stalls_total"] == 7  # before Linux 4.10, summed over all zones
    assert "oom_kills_total" not in found
    assert not read(MemoryCollector(str(procfs)))[1]


def test_reads_this_machine() -> None:
    series, errors = read(MemoryCollector("/proc"))
    assert not errors
    assert ("whyidle_memory_total_bytes", ()) in series
    assert ("whyidle_memory_major_faults_total", ()) in series
