"""The collector `cpu`, and all collectors that read /proc for the whole node, compared with node_exporter."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_node import cpu
from support_ledgers import DEADLINE_SECONDS
from support_matrix import FAULTS, Anew, Series, check, read

from whyidle.agent.collector import Collector
from whyidle.agent.collectors.cpu import CpuCollector
from whyidle.agent.collectors.disk import DiskCollector
from whyidle.agent.collectors.memory import MemoryCollector
from whyidle.agent.collectors.pressure import PressureCollector
from whyidle.agent.files import Roots
from whyidle.agent.metrics.memory import PAGE_BYTES


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    cpu.build(Roots(str(tmp_path)))
    return tmp_path


def seconds(series: dict[Series, object]) -> dict[str, object]:
    return {labels[0]: value for (name, labels), value in series.items() if name == "whyidle_cpu_seconds_total"}


def rewrite(procfs: Path, old: str, new: str) -> None:
    path = procfs / "stat"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_exports_modes_and_other_counters(procfs: Path) -> None:
    series, errors = read(CpuCollector(str(procfs)))
    assert not errors
    assert seconds(series) == {
        "user": 10000.01,
        "nice": 20.0,
        "system": 3000.03,
        "idle": 40000.04,
        "iowait": 500.05,
        "irq": 0.6,
        "softirq": 70.07,
        "steal": 8.08,
    }
    others = {(name.removeprefix("whyidle_cpu_"), *labels): value for (name, labels), value in series.items()}
    assert others["online_cpus",] == cpu.CPUS
    assert others["context_switches_total",] == 1234567890
    assert others["boot_time_seconds",] == 1795214329
    assert others["forks_total",] == 424242
    assert others["running_tasks",] == 7
    assert others["blocked_tasks",] == 3
    assert [others["load_average", window] for window in ("1m", "5m", "15m")] == [6.25, 5.5, 4.75]


def policy(sysfs: Path, number: int, **files: object) -> Path:
    """A frequency policy: a governor that may choose any frequency, unless ``files`` say otherwise."""
    folder = sysfs / f"devices/system/cpu/cpufreq/policy{number}"
    folder.mkdir(parents=True)
    values = {"scaling_min_freq": 800_000, "scaling_max_freq": 4_000_000, "cpuinfo_max_freq": 4_000_000}
    for name, value in {"scaling_governor": "schedutil", "scaling_driver": "acpi-cpufreq", **values, **files}.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def limits(collector: CpuCollector) -> tuple[dict[tuple[str, ...], object], int]:
    series, errors = read(collector)
    found = {labels: value for (name, labels), value in series.items() if name == "whyidle_cpu_frequency_limit_ratio"}
    return found, errors.total()


def test_exports_how_far_the_frequency_is_limited(procfs: Path, tmp_path: Path) -> None:
    sysfs = tmp_path / "sys"
    policy(sysfs, 0)
    policy(sysfs, 1, scaling_max_freq=2_000_000)
    policy(sysfs, 2, scaling_governor="powersave")
    assert limits(CpuCollector(str(procfs), str(sysfs))) == (
        {("schedutil", "acpi-cpufreq"): 0.5, ("powersave", "acpi-cpufreq"): 0.2},
        0,
    )


def test_a_policy_that_cannot_be_read_is_left_out(procfs: Path, tmp_path: Path) -> None:
    sysfs = tmp_path / "sys"
    policy(sysfs, 0)
    (policy(sysfs, 1) / "scaling_driver").unlink()
    policy(sysfs, 2, scaling_max_freq="<unsupported>")
    assert limits(CpuCollector(str(procfs), str(sysfs))) == ({("schedutil", "acpi-cpufreq"): 1.0}, 2)
    assert limits(CpuCollector(str(procfs), str(tmp_path))) == ({}, 0)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_affects_only_its_own_series(procfs: Path, fault: str) -> None:
    def create() -> Collector:
        if fault in ("missing", "EINVAL"):
            return Anew(lambda: CpuCollector(str(procfs)))
        return CpuCollector(str(procfs))

    for file in ("stat", "loadavg"):
        check(create, procfs / file, fault, lambda series, file=file: ("load" in series[0]) == (file == "loadavg"))


def test_a_corrupt_line_affects_only_its_values(procfs: Path) -> None:
    collector = CpuCollector(str(procfs))
    before, _ = read(collector)
    rewrite(procfs, "cpu  1000001 ", "cpu  four ")
    during, errors = read(collector)
    assert {name for name, _ in before.keys() - during.keys()} == {"whyidle_cpu_seconds_total"}
    assert list(errors) == [("", "stat, cpu", "garbage")]


def test_idle_and_iowait_never_decrease_slightly(procfs: Path) -> None:
    collector = CpuCollector(str(procfs))
    before = seconds(read(collector)[0])
    rewrite(procfs, " 4000004 50005 ", " 4000001 49999 ")
    assert seconds(read(collector)[0]) == before
    rewrite(procfs, " 4000001 49999 ", " 4000104 50105 ")
    after = seconds(read(collector)[0])
    assert (after["idle"], after["iowait"]) == (40001.04, 501.05)
    rewrite(procfs, " 4000104 50105 ", " 77 7 ")  # counted again from 0
    after = seconds(read(collector)[0])
    assert (after["idle"], after["iowait"]) == (0.77, 0.07)


# Comparison with node_exporter on this machine.


@pytest.fixture
def node_exporter() -> Iterator[str]:
    """The address of its metrics."""
    program = shutil.which("prometheus-node-exporter")
    if program is None:
        pytest.skip("prometheus-node-exporter is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    collectors = ("cpu", "diskstats", "pressure", "meminfo", "stat", "vmstat")
    process = subprocess.Popen(
        [
            *(program, f"--web.listen-address={address}", "--collector.disable-defaults"),
            *(f"--collector.{name}" for name in collectors),
            "--collector.vmstat.fields=^(oom_kill|pswp|pgmajfault|workingset_refault_file).*",
            "--collector.diskstats.device-exclude=^$",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://{address}/metrics"
    finally:
        process.terminate()
        process.wait(DEADLINE_SECONDS)


def theirs(url: str) -> dict[str, float]:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_SECONDS) as answer:
                text = answer.read().decode()
            break
        except urllib.error.URLError:
            assert time.monotonic() < deadline, "node_exporter does not answer"
            time.sleep(0.05)
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#")
    return {name: float(value) for name, value in lines}


def ours() -> dict[str, float]:
    """Our counters, by name."""
    found: dict[str, float] = {}
    collectors = (CpuCollector("/proc"), DiskCollector("/proc", "/sys"), MemoryCollector("/proc"))
    for collector in (*collectors, PressureCollector("/proc/pressure")):
        series, errors = read(collector)
        assert not errors
        for (name, labels), value in series.items():
            assert isinstance(value, (int, float))
            if their := _their_name(name, labels):
                found[their] = value
    return found


_PRESSURE = {"some": "waiting", "full": "stalled"}
_SAME = {
    "cpu_context_switches_total": "node_context_switches_total",
    "cpu_forks_total": "node_forks_total",
    "memory_major_faults_total": "node_vmstat_pgmajfault",
    "memory_oom_kills_total": "node_vmstat_oom_kill",
}
_DISK = {
    **{name: name for name in ("read_bytes_total", "written_bytes_total", "io_weighted_seconds_total")},
    **{f"{what}_total": f"{what}_completed_total" for what in ("reads", "writes", "discards")},
    **{f"{what}_merged_total": f"{what}_merged_total" for what in ("reads", "writes")},
    **{f"{what}_seconds_total": f"{what}_time_seconds_total" for what in ("read", "write", "io", "discard")},
    "io_weighted_seconds_total": "io_time_weighted_seconds_total",
    "flushes_total": "flush_requests_total",
    "flush_seconds_total": "flush_requests_time_seconds_total",
}


def _their_name(name: str, labels: tuple[str, ...]) -> str | None:
    name = name.removeprefix("whyidle_")
    if name == "cpu_seconds_total":
        return f'node_cpu_seconds_total{{mode="{labels[0]}"}}'
    if name == "pressure_stalled_seconds_total" and labels[0] != "irq":
        return f"node_pressure_{labels[0]}_{_PRESSURE[labels[1]]}_seconds_total"
    if name.startswith("disk_") and (their := _DISK.get(name.removeprefix("disk_"))):
        return f'node_disk_{their}{{device="{labels[0]}"}}'
    return _SAME.get(name)


def test_agrees_with_node_exporter(node_exporter: str) -> None:
    """The values that only grow are, in our result, between two readings of node_exporter."""
    first, mine, last = theirs(node_exporter), ours(), theirs(node_exporter)
    for answer in (first, last):  # node_exporter counts by CPU
        for mode in ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"):
            pattern = re.compile(rf'node_cpu_seconds_total{{cpu="\d+",mode="{mode}"}}')
            per_cpu = [value for name, value in answer.items() if pattern.fullmatch(name)]
            answer[f'node_cpu_seconds_total{{mode="{mode}"}}'] = sum(per_cpu)
            answer["cpus"] = len(per_cpu)
    # node_exporter rounds each CPU down to a tick. Its pressure is a sum of floats like ours.
    slack = {name: first["cpus"] * 0.01 if "cpu_seconds" in name else 1e-6 for name in mine}
    assert mine.keys() <= first.keys(), mine.keys() - first.keys()
    wrong = {
        name: (first[name], value, last[name])
        for name, value in mine.items()
        if not first[name] - slack[name] <= value <= last[name] + slack[name]
    }
    assert not wrong
    assert {name.split("_")[1] for name in mine} >= {"cpu", "context", "forks", "vmstat"}
    memory, _ = read(MemoryCollector("/proc"))
    assert memory["whyidle_memory_total_bytes", ()] == last["node_memory_MemTotal_bytes"]
    swapped = memory["whyidle_memory_swapped_in_bytes_total", ()]
    assert isinstance(swapped, int)
    assert swapped / PAGE_BYTES >= first["node_vmstat_pswpin"]
