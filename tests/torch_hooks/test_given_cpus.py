"""Which CPUs a rank may use: quotas on captured trees and in a real group, affinity that narrows, its launcher."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_ledgers import until
from test_given_memory import put

from whyidle.ledger.given import QUOTA_ABOVE, QUOTA_INSIDE
from whyidle.ledger.layout import LEDGER_BYTES, WORD_AT
from whyidle.torch_hooks.given import cpus, groups, told

CPU = Path("/sys/fs/cgroup/cpu")
ID = "0123456789abcdef" * 4


class Looked:
    """A probe and its ledger."""

    def __init__(self, workers: set[int] | None = None, at_start: frozenset[int] | None = None):
        self.words = memoryview(bytearray(LEDGER_BYTES)).cast("q")
        self.strings: dict[str, str] = {}
        start = frozenset(os.sched_getaffinity(0)) if at_start is None else at_start
        self.probe = cpus.CpuProbe(
            self.words, self.strings.__setitem__, 0, start, set() if workers is None else workers
        )

    def __getitem__(self, name: str) -> int:
        return self.words[WORD_AT[name][0]]

    def window(self) -> None:
        self.words[WORD_AT["window_ns"][0]] = 1


def tree(monkeypatch: pytest.MonkeyPatch, root: Path, cgroup: str) -> None:
    (root / "cgroup.procs").touch()
    (root / "self").write_text(cgroup)
    monkeypatch.setattr(cpus, "folders", lambda name: groups.folders(name, str(root), str(root / "self")))


def test_the_least_quota_may_be_of_a_group_above(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Above the container: the node's tree is visible, and the group has its id."""
    put(tmp_path / "pod", cpu_max="150000 100000\n", cpu_stat="nr_periods 9\nnr_throttled 4\nthrottled_usec 70\n")
    put(tmp_path / f"pod/{ID}", cpu_max="max 100000\n", cpu_stat="nr_periods 0\n")
    tree(monkeypatch, tmp_path, f"0::/pod/{ID}\n")
    looked = Looked()
    looked.window()
    looked.probe.look()
    put(tmp_path / "pod", cpu_stat="nr_periods 29\nnr_throttled 14\nthrottled_usec 170\n")
    looked.probe.look()
    assert (looked["cpu_quota_milli"], looked["cpu_quota_of"]) == (1500, QUOTA_ABOVE)
    assert looked["cpu_quota_id"] == os.stat(tmp_path / "pod").st_ino
    assert (looked["cpu_periods"], looked["cpu_throttled_periods"]) == (20, 10)
    assert looked["cpu_throttled_ns"] == 100_000


def test_a_larger_quota_above_is_told_if_it_is_the_one_that_stops_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A sidecar uses up the quota of the pod."""
    put(tmp_path / "pod", cpu_max="100000 100000\n", cpu_stat="nr_periods 9\nnr_throttled 4\nthrottled_usec 70\n")
    put(tmp_path / "pod/container", cpu_max="90000 100000\n", cpu_stat="nr_periods 9\nnr_throttled 0\n")
    tree(monkeypatch, tmp_path, "0::/pod/container\n")
    monkeypatch.setattr(cpus, "_FIND_EVERY", 1)
    looked = Looked()
    looked.window()
    looked.probe.look()
    assert looked["cpu_quota_milli"] == 900
    for number, quota in ((14, 900), (34, 1000), (44, 1000)):  # a few periods are not worth it
        put(tmp_path / "pod", cpu_stat=f"nr_periods {number + 10}\nnr_throttled {number}\nthrottled_usec 170\n")
        looked.probe.look()
        assert looked["cpu_quota_milli"] == quota
    assert looked["cpu_quota_of"] == QUOTA_ABOVE | QUOTA_INSIDE
    assert (looked["cpu_periods"], looked["cpu_throttled_periods"]) == (10, 10)


def test_files_of_version_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a container that does not see its own path: the visible root is its group."""
    files = {"cpu_cfs_quota_us": "40000\n", "cpu_cfs_period_us": "100000\n"}
    put(tmp_path / "cpu", **files, cpu_stat="nr_periods 5\nnr_throttled 5\nthrottled_time 7\n")
    tree(monkeypatch, tmp_path, "1:cpu:/docker/0123\n")
    looked = Looked()
    looked.probe.look()
    assert (looked["cpu_quota_milli"], looked["cpu_quota_of"]) == (400, 0)


@pytest.mark.parametrize("visible", ["", f"docker/{ID}/"], ids=["its own groups", "the node's"])
def test_a_group_inside_of_a_container(visible: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put(tmp_path / f"{visible}job", cpu_max="50000 100000\n", cpu_stat="nr_periods 0\n")
    tree(monkeypatch, tmp_path, f"0::/{visible}job\n")
    looked = Looked()
    looked.probe.look()
    assert (looked["cpu_quota_milli"], looked["cpu_quota_of"]) == (500, QUOTA_INSIDE)


@pytest.mark.parametrize("text", ["", "max\n", "0 100000\n", "garbage 1\n", "5 0\n"])
def test_no_quota(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    put(tmp_path / "job", cpu_max=text)
    tree(monkeypatch, tmp_path, "0::/job\n")
    looked = Looked()
    looked.window()
    looked.probe.look()
    assert (looked["cpu_quota_milli"], looked["cpu_periods"]) == (0, 0)


def test_a_worker_that_may_use_fewer_cpus_than_the_loop() -> None:
    if len(mine := os.sched_getaffinity(0)) < 2:
        pytest.skip("this process may use one CPU only")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        os.sched_setaffinity(child.pid, {max(mine)})
        looked = Looked({child.pid, 1 << 22})
        looked.probe.look()
        assert (looked["cpus_allowed"], looked["worker_cpus"]) == (len(mine), 1)
        assert looked.strings["worker_cpu_list"] == str(max(mine))
        assert looked["worker_threads"] >= 1
    finally:
        child.kill()
        child.wait()


def test_workers_that_are_bound_to_one_cpu_each_may_use_all_of_them() -> None:
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        pytest.skip("one CPU only")
    children = [subprocess.Popen(("sleep", "60")) for _ in mine]
    try:
        for child, cpu in zip(children, mine, strict=True):
            os.sched_setaffinity(child.pid, {cpu})
        looked = Looked({child.pid for child in children})
        looked.probe.look()
        assert looked["worker_cpus"] == len(mine)
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_what_a_rank_has_started_is_its_own_unless_it_is_a_rank(tmp_path: Path) -> None:
    looked = Looked()
    looked.probe._directory = str(tmp_path)
    looked.window()
    looked.probe.look()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            used = looked["used_cpu_ns"]
            assert until(lambda: looked.probe.look() or looked["used_cpu_ns"] - used > 200_000_000)
            (tmp_path / f"1-{child.pid}-abc.ledger").touch()
            looked.probe.look()
            before = looked["used_cpu_ns"]
            time.sleep(0.3)
            looked.probe.look()
            assert looked["used_cpu_ns"] - before < 100_000_000
        finally:
            child.kill()


def test_a_program_that_narrows_its_own_cpus() -> None:
    looked = Looked(at_start=frozenset(range(64)))
    assert (looked["cpus_at_start"], looked["cpus_changed_ns"]) == (64, 0)
    looked.probe.look()
    assert looked["cpus_allowed"] == len(os.sched_getaffinity(0))
    assert looked["cpus_changed_ns"] > 0


def test_counts_the_cpu_time_of_the_rank_and_of_children_that_have_ended() -> None:
    looked = Looked()
    looked.probe.look()
    assert looked["given_ns"] == 0  # no step has begun
    looked.window()
    looked.probe.look()
    subprocess.run([sys.executable, "-c", "sum(range(10**6))"], check=True)
    burnt = time.process_time_ns()
    sum(range(10**6))
    burnt = time.process_time_ns() - burnt
    looked.probe.look()
    assert looked["worker_cpu_ns"] > 0
    assert looked["worker_cpu_ns"] + burnt <= looked["used_cpu_ns"]


@pytest.mark.parametrize("ends", [True, False], ids=["for each sample", "a server"])
def test_programs_that_a_worker_runs_are_of_the_job(ends: bool) -> None:
    pids: set[int] = set()
    looked = Looked(pids)
    looked.window()
    looked.probe.look()
    runs = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])\nprint(flush=True); input()"
    spins = SPINS.replace("; input()", "") if ends else SPINS
    with subprocess.Popen([sys.executable, "-c", runs, spins], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        pids.add(worker.pid)
        worker.stdout.readline()
        if ends:
            worker.stdout.readline()
        looked.probe.look()
        assert looked["worker_cpu_ns"] >= 300_000_000
        worker.communicate(b"\n\n")


@pytest.fixture
def group() -> Iterator[Path]:
    folder = CPU / f"whyidle-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("no control group of version 1 can be made here")
    yield folder
    folder.rmdir()


def test_a_real_quota(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (group / "cpu.cfs_period_us").write_text("100000")
    (group / "cpu.cfs_quota_us").write_text("40000")
    (group / "inner").mkdir()
    try:
        script = (
            "import sys; from whyidle.torch_hooks.given.cpus import *; found = folders('cpu');"
            "print(found[0].endswith('inner'), [quota_of(folder) for folder in found[:2]])"
        )
        joins = f'echo $$ > {group}/inner/cgroup.procs && exec {sys.executable} -c "{script}"'
        done = subprocess.run(["sh", "-c", joins], capture_output=True, text=True, check=False)
        assert done.stdout.split() == ["True", "[None,", "0.4]"], done.stderr
    finally:
        (group / "inner").rmdir()


@pytest.mark.parametrize(
    ("environ", "launcher", "given"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "4"}, "slurm", 4),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "16(x2),8"}, "slurm", 16),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "16(x2),8", "SLURM_NODEID": "1"}, "slurm", 16),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "16(x2),8", "SLURM_NODEID": "2"}, "slurm", 8),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "16(x2),8", "SLURM_NODEID": "9"}, "slurm", 0),
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "many"}, "slurm", 0),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes", 0),
    ],
)
def test_the_word_of_the_launcher(environ: dict[str, str], launcher: str, given: int) -> None:
    assert (told.launcher(environ), told.launcher_cpus(environ)) == (launcher, given)


@pytest.mark.parametrize(("given", "text"), [((), ""), ((3,), "3"), ((0, 1, 2, 8), "0-2,8")])
def test_cpus_are_listed_as_in_proc(given: tuple[int, ...], text: str) -> None:
    assert cpus.listed(given) == text


SPINS = "import time; end = time.thread_time() + 0.3\nwhile time.thread_time() < end: pass\nprint(flush=True); input()"


def test_the_time_of_workers_that_a_fork_server_has_started_stays_when_they_end() -> None:
    """This process does not wait for them, so the kernel does not add their time to that of its children."""
    code = f"import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', {SPINS!r}]); print(c.pid); c.wait()"
    pids: set[int] = set()
    looked = Looked(pids)
    looked.window()
    looked.probe.look()
    with subprocess.Popen([sys.executable, "-u", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        pids.add(int(server.stdout.readline()))
        server.stdout.readline()
        looked.probe.look()
        assert looked["worker_cpu_ns"] >= 300_000_000
        server.communicate(b"\n")
    looked.probe.look()
    assert looked["worker_cpu_ns"] >= 300_000_000
    looked.probe.look()
    assert not pids


def test_workers_that_live_are_seen_after_many_that_have_ended() -> None:
    ended = []
    for _ in range(70):
        with subprocess.Popen(["true"]) as one:
            ended.append(one.pid)
    looked = Looked({*ended, os.getpid()})
    looked.probe.look()
    assert looked["worker_cpus"] == len(os.sched_getaffinity(0))
