"""Control groups of ranks: both versions, from inside cgroup namespaces, with corrupted files, and real groups."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_node import processes as fake
from hypothesis import given
from hypothesis import strategies as st
from support_ledgers import Spec, children, until
from support_matrix import FAULTS, Anew, Series, check, files, read
from support_ranks import Scrapes

from whyidle.agent.collector import Collector
from whyidle.agent.collectors.cgroup import create
from whyidle.agent.files import Roots, Unreadable
from whyidle.agent.kernel.cgroup_tree import CgroupTree
from whyidle.agent.metrics.cgroup import METRICS
from whyidle.agent.reading import Absent, Reading
from whyidle.linux import cgroups

PREFIX = "whyidle_cgroup_"
UNIFIED = next(
    (path for path in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified") if os.path.exists(f"{path}/cgroup.controllers")), ""
)


def of_group(series: dict[Series, object], group: str) -> dict[tuple[str, ...], object]:
    return {
        (name.removeprefix(PREFIX), *labels[1:]): value
        for (name, labels), value in series.items()
        if labels[0] == group
    }


def ranks(series: dict[Series, object]) -> set[tuple[str, ...]]:
    return {labels for name, labels in series if name == f"{PREFIX}rank_info"}


def put(roots: Roots, text: str) -> None:
    """Puts both ranks into these groups."""
    for pid in fake.RANKS:
        Path(roots.procfs, str(pid), "cgroup").write_text(text)


def blind(scrapes: Scrapes) -> set[str]:
    reading = Reading()
    scrapes.collect(reading)
    return {spot.what for spot in reading.blind_spots}


def test_exports_the_group_of_ranks_and_the_parent_that_limits_it(ledgers: Path, roots: Roots) -> None:
    series, errors = read(Scrapes(create, ledgers, roots))
    assert not errors
    assert ranks(series) == {
        ("lab", "r1", rank, group, level)
        for rank in "01"
        for group, level in ((fake.CONTAINER, "own"), (fake.POD, "above"))
    }
    assert of_group(series, fake.POD) == {
        ("pressure_stalled_seconds_total", "cpu", "some"): 1.100001,
        ("pressure_stalled_seconds_total", "cpu", "full"): 1.200001,
        ("pressure_stalled_seconds_total", "io", "some"): 1.300001,
        ("pressure_stalled_seconds_total", "io", "full"): 1.400001,
        ("pressure_stalled_seconds_total", "memory", "some"): 1.500001,
        ("pressure_stalled_seconds_total", "memory", "full"): 1.600001,
        ("cpu_seconds_total",): 9.001002,
        ("cpu_periods_total",): 7001,
        ("cpu_throttled_periods_total",): 701,
        ("cpu_throttled_seconds_total",): 71.000001,
        ("cpu_limit_cpus",): 8.0,
        ("memory_bytes",): 100000000001,
        ("memory_events_total", "high"): 0,
        ("memory_events_total", "max"): 0,
        ("memory_events_total", "oom_kill"): 0,
    }
    container = of_group(series, fake.CONTAINER)
    assert container["memory_limit_bytes",] == 137438953472
    assert container["memory_events_total", "oom_kill"] == 14
    assert ("cpu_limit_cpus",) not in container
    assert {name for name, _ in series} == {metric.name for metric in METRICS}


def test_a_group_for_which_there_was_no_room_takes_that_of_a_rank_that_ends(
    ledgers: Path, roots: Roots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whyidle.agent.collectors.cgroup.GROUPS", 1)
    groups = {pid: f"/job/task_{pid}" for pid in fake.RANKS}
    for pid, group in groups.items():
        Path(roots.sysfs, f"fs/cgroup{group}").mkdir(parents=True)
        Path(roots.procfs, str(pid), "cgroup").write_text(f"0::{group}\n")
    scrapes = Scrapes(create, ledgers, roots)
    first, second = fake.RANKS
    assert {labels[3] for labels in ranks(read(scrapes)[0])} == {groups[first]}
    ended = next(ledgers.glob("0-*"))
    away = ended.rename(ended.with_suffix(".away"))
    try:
        assert {labels[3] for labels in ranks(read(scrapes)[0])} == {groups[second]}
    finally:
        away.rename(ended)  # other tests use it


def test_exports_nothing_without_a_rank(tmp_path: Path) -> None:
    with pytest.raises(Absent):
        Scrapes(create, tmp_path).collect(Reading())


@pytest.mark.parametrize("fault", FAULTS)
def test_each_bad_file_affects_only_its_own_series(ledgers: Path, roots: Roots, fault: str) -> None:
    top = Path(roots.sysfs, "fs/cgroup")
    word = {"cpu.max": ("cpu_limit_cpus",), "memory.current": ("memory_bytes",), "memory.max": ("memory_limit_bytes",)}
    word |= {"memory.events": ("memory_events_total",)}
    word |= {"cpu.stat": ("cpu_seconds", "cpu_periods", "cpu_throttled")}

    def make() -> Collector:
        return Scrapes(create, ledgers, roots)

    def holds(series: Series, group: str, file: str) -> bool:
        name, labels = series[0].removeprefix(PREFIX), series[1]
        if file.endswith(".pressure"):
            return name.startswith("pressure") and labels[:2] == (group, file.split(".")[0])
        return labels[0] == group and name.startswith(word[file])

    for path in files(top):
        group, file = str(path.parent)[len(str(top)) :], path.name
        if group not in (fake.POD, fake.CONTAINER) or file not in (
            "cpu.pressure",
            "io.pressure",
            "memory.pressure",
            *word,
        ):
            continue
        if fault == "missing" and (group, file) == (fake.POD, "cpu.max"):
            continue  # a group without a limit is not read
        check(
            lambda: Anew(make) if fault in ("missing", "EINVAL") else make(),
            path,
            fault,
            lambda series, group=group, file=file: holds(series, group, file),
            counted=fault != "missing",  # not every kernel has it
        )


@pytest.mark.parametrize("fault", FAULTS)
def test_a_rank_with_an_unknown_group_affects_only_itself(ledgers: Path, roots: Roots, fault: str) -> None:
    def make() -> Collector:
        return Scrapes(create, ledgers, roots)

    check(
        lambda: Anew(make) if fault in ("missing", "EINVAL") else make(),
        Path(roots.procfs, "4100/cgroup"),
        fault,
        lambda series: series[1][:3] == ("lab", "r1", "0"),
        counted=fault != "missing",  # the process has ended
    )


def test_series_of_a_removed_group_are_removed(ledgers: Path, roots: Roots) -> None:
    scrapes = Scrapes(create, ledgers, roots)
    before, _ = read(scrapes)
    put(roots, f"0::{fake.POD}\n")
    series, errors = read(scrapes)
    assert not errors
    assert ranks(series) == {("lab", "r1", rank, fake.POD, "own") for rank in "01"}
    assert not of_group(series, fake.CONTAINER)
    put(roots, fake.CGROUP)
    assert read(scrapes)[0] == before


# Namespaces


def test_an_agent_in_a_cgroup_namespace_finds_a_group_by_name(ledgers: Path, roots: Roots) -> None:
    pod, container = fake.CONTAINER.split("/")[-2:]
    put(roots, f"0::/../../../kubepods-burstable.slice/{pod}/{container}\n")
    scrapes = Scrapes(create, ledgers, roots)
    assert ("lab", "r1", "0", fake.CONTAINER, "own") in ranks(read(scrapes)[0])
    put(roots, f"0::/../{container}\n")
    assert ("lab", "r1", "0", fake.CONTAINER, "own") in ranks(read(scrapes)[0])
    assert not blind(scrapes)


def test_two_groups_of_one_name_are_distinguished_by_their_processes(ledgers: Path, roots: Roots) -> None:
    for pod, procs in (("pod-a", "1\n"), ("pod-b", "4100\n4200\n")):
        folder = Path(f"{roots.sysfs}/fs/cgroup/kubepods.slice/{pod}/main")
        folder.mkdir(parents=True)
        folder.joinpath("cgroup.procs").write_text(procs)
    put(roots, "0::/../../main\n")
    assert ("lab", "r1", "0", "/kubepods.slice/pod-b/main", "own") in ranks(read(Scrapes(create, ledgers, roots))[0])
    Path(f"{roots.sysfs}/fs/cgroup/kubepods.slice/pod-b/main/cgroup.procs").write_text("0\n0\n")
    scrapes = Scrapes(create, ledgers, roots)
    assert not read(scrapes)[0]
    assert blind(scrapes) == {"the control groups of some ranks"}


@pytest.mark.parametrize("path", ["/../..", "/no/such/group", "/../../nor/this", "/" + "x" * 600])
def test_reports_a_group_that_is_not_visible(ledgers: Path, roots: Roots, path: str) -> None:
    put(roots, f"0::{path}\n")
    scrapes = Scrapes(create, ledgers, roots)
    assert not read(scrapes)[0]
    assert blind(scrapes) == {"the control groups of some ranks"}


def test_the_root_group_is_the_node_unless_it_is_a_namespace_root(ledgers: Path, roots: Roots) -> None:
    put(roots, "0::/\n")
    scrapes = Scrapes(create, ledgers, roots)
    assert not read(scrapes)[0]
    assert not blind(scrapes)
    top = Path(roots.sysfs, "fs/cgroup")
    top.joinpath("cgroup.type").write_text("domain\n")
    top.joinpath("memory.current").write_text("4711\n")
    assert of_group(read(Scrapes(create, ledgers, roots))[0], "/") == {("memory_bytes",): 4711}


# Version 1


def test_reads_version_1_beside_version_2(ledgers: Path, roots: Roots, tmp_path: Path) -> None:
    top = Path(roots.sysfs, "fs/cgroup")
    top.rename(tmp_path / "old")
    job = {
        "cpu,cpuacct/slurm/job_7": {
            "cpu.stat": "nr_periods 11\nnr_throttled 12\nthrottled_time 13000000000\n",
            "cpu.cfs_quota_us": "250000\n",
            "cpu.cfs_period_us": "100000\n",
            "cpuacct.usage": "14000000000\n",
        },
        "cpu,cpuacct/slurm/job_7/step_0": {
            "cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
            "cpu.cfs_quota_us": "-1\n",
            "cpu.cfs_period_us": "100000\n",
            "cpuacct.usage": "15000000000\n",
        },
        "memory/slurm/job_7/step_0": {
            "memory.usage_in_bytes": "16\n",
            "memory.limit_in_bytes": "9223372036854771712\n",
            "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 17\n",
        },
        "memory/slurm/job_7": {"memory.limit_in_bytes": "18\n", "memory.usage_in_bytes": "19\n"},
        "unified/slurm": {"io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=20000000\n"},
        "unified": {"cgroup.controllers": ""},
    }
    for folder, group in job.items():
        for name, text in group.items():
            path = top / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for name in ("cpu", "cpuacct"):
        (top / name).symlink_to("cpu,cpuacct")
    put(
        roots,
        "9:memory:/slurm/job_7/step_0\n5:cpuset:/slurm\n4:cpu,cpuacct:/slurm/job_7/step_0\n"
        "1:name=systemd:/system.slice/slurmd.service\n0::/slurm\n",
    )
    series, errors = read(Scrapes(create, ledgers, roots))
    assert not errors
    assert {labels[3:] for labels in ranks(series)} == {
        ("/slurm", "own"),
        ("/slurm/job_7/step_0", "own"),
        ("/slurm/job_7", "above"),
    }
    assert of_group(series, "/slurm/job_7/step_0") == {
        ("cpu_periods_total",): 0,
        ("cpu_throttled_periods_total",): 0,
        ("cpu_throttled_seconds_total",): 0.0,
        ("cpu_seconds_total",): 15.0,
        ("memory_bytes",): 16,
        ("memory_events_total", "oom_kill"): 17,
    }
    assert of_group(series, "/slurm/job_7") == {
        ("cpu_periods_total",): 11,
        ("cpu_throttled_periods_total",): 12,
        ("cpu_throttled_seconds_total",): 13.0,
        ("cpu_limit_cpus",): 2.5,
        ("cpu_seconds_total",): 14.0,
        ("memory_bytes",): 19,
        ("memory_limit_bytes",): 18,
    }
    assert of_group(series, "/slurm") == {("pressure_stalled_seconds_total", "io", "some"): 20.0}


# Formats and bounds


@given(st.binary(max_size=300))
def test_parsers_raise_only_unreadable(data: bytes) -> None:
    for parse in (cgroups.paths, cgroups.keyed, cgroups.limit, cgroups.cpu_max, cgroups.cfs_quota):
        try:
            parse(data)
        except Unreadable:
            continue


def test_a_search_is_bounded(tmp_path: Path) -> None:
    root = tmp_path / "fs/cgroup"
    deep = root.joinpath(*["d"] * 40, "pod", "container")
    deep.mkdir(parents=True)
    (root / "cgroup.controllers").touch()
    with pytest.raises(Unreadable):
        CgroupTree(str(tmp_path)).locate({"": "/../pod/container"}, 1)


# The real machine


def _own_group(tmp_path: Path) -> Path | None:
    """A new control group of version 2, if this machine allows one."""
    path = Path(UNIFIED) / f"whyidle-test-{os.getpid()}"
    try:
        path.mkdir()
    except OSError:
        return None
    return path


def test_reads_a_real_group(tmp_path: Path) -> None:
    group = _own_group(tmp_path) if UNIFIED else None
    if group is None:
        pytest.skip("needs root: a control group of version 2")
    try:
        with children(tmp_path, Spec()) as (rank,):
            (group / "cgroup.procs").write_text(str(rank.process.pid))
            spin = f"import os; open('{group}/cgroup.procs', 'w').write(str(os.getpid())); sum(range(3_000_000))"
            subprocess.run([sys.executable, "-c", spin], check=True)
            series, _ = read(Scrapes(create, tmp_path))
            assert ("lab", "r1", "0", f"/{group.name}", "own") in ranks(series)
            spent = of_group(series, f"/{group.name}")["cpu_seconds_total",]
            assert isinstance(spent, float)
            assert 0.01 < spent < 60.0
    finally:
        until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
