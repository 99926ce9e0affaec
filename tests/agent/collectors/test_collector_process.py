"""What ranks and their workers use, from a simulated /proc, with corrupted files, and from real processes that come and
go."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import support_ranks
from fake_node import processes as fake
from hypothesis import given
from hypothesis import strategies as st
from support_hang import hung_mount, may_mount
from support_ledgers import Spec, children, until
from support_matrix import CONTENTS, FAULTS, Anew, Series, check, files, read, spoilt
from support_ranks import Scrapes, tell

from whyidle.agent.collector import Collector
from whyidle.agent.collectors.process import create
from whyidle.agent.files import Roots
from whyidle.agent.metrics.process import METRICS
from whyidle.agent.processes.rank_usage import Rising
from whyidle.agent.reading import Absent, Reading

PREFIX = "whyidle_process_"
RANK = Path(support_ranks.__file__)
CPU = f"{PREFIX}cpu_seconds_total"
TICKS = os.sysconf("SC_CLK_TCK")


_AS_ANOTHER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all")


def _may_be_another_user() -> bool:
    command = [*_AS_ANOTHER, sys.executable, "-c", "import whyidle"]
    return bool(shutil.which("setpriv")) and subprocess.run(command, capture_output=True).returncode == 0


def of_rank(series: dict[Series, object], rank: int = 0) -> dict[tuple[str, ...], object]:
    """The series of one rank, by the part of the name after the prefix, and the labels after the rank."""
    return {
        (name.removeprefix(PREFIX), *labels[3:]): value
        for (name, labels), value in series.items()
        if labels[2] == str(rank)
    }


def test_exports_a_rank_and_its_workers(ledgers: Path, roots: Roots) -> None:
    series, errors = read(Scrapes(create, ledgers, roots))
    assert not errors
    found = of_rank(series)
    assert found.pop(("blocked_seconds_total", "main"), None) is not None  # the clock is real
    assert found.pop(("blocked_seconds_total", "worker"), None) is not None
    workers = (4101, 4102, 4103)
    page = os.sysconf("SC_PAGE_SIZE")

    def total(digit: int, suffix: str = "") -> int:
        return sum(int(f"{digit}{pid}{suffix}") for pid in workers)

    assert found == {
        ("cpu_seconds_total", "main", "user"): 34100 / TICKS,
        ("cpu_seconds_total", "main", "system"): 44100 / TICKS,
        ("cpu_seconds_total", "worker", "user"): (54100 + total(3) + total(5)) / TICKS,
        ("cpu_seconds_total", "worker", "system"): (64100 + total(4) + total(6)) / TICKS,
        ("runqueue_seconds_total", "main"): 641000000 / 1e9,
        ("runqueue_seconds_total", "worker"): total(6, "0000") / 1e9,
        ("block_io_seconds_total", "main"): 1 / TICKS,
        ("block_io_seconds_total", "worker"): (2 + 3 + 4) / TICKS,
        ("state_samples_total", "main"): 1,
        ("state_samples_total", "worker"): 3,
        ("uninterruptible_samples_total", "main"): 0,
        ("uninterruptible_samples_total", "worker"): 1,
        ("syscall_read_bytes_total",): 14100000 + total(1, "000"),
        ("syscall_write_bytes_total",): 24100000 + total(2, "000"),
        ("storage_read_bytes_total",): 34100000 + total(3, "000"),
        ("storage_write_bytes_total",): 44100000 + total(4, "000"),
        ("major_faults_total",): 14100 + 24100 + total(1) + total(2),
        ("resident_bytes", "main"): 41000 * page,
        ("resident_bytes", "worker"): sum(pid * 10 for pid in workers) * page,
        ("threads", "main"): 14,
        ("threads", "worker"): 21,
        ("workers",): 3,
    }
    assert {name for name, _ in series} == {metric.name for metric in METRICS}
    assert of_rank(series, 1).keys() == of_rank(series, 0).keys()


def test_exports_nothing_without_a_rank(tmp_path: Path) -> None:
    with pytest.raises(Absent):
        Scrapes(create, tmp_path).collect(Reading())


# Faults

_WORKER = ("workers", "major_faults_total", "syscall_", "storage_")


def _spoils(path: Path, fault: str, series: Series) -> bool:
    """Whether a series needs the contents of the file."""
    name, labels = series[0].removeprefix(PREFIX), series[1]
    pid = int(path.parts[path.parts.index("proc") + 1])
    if labels[2] != ("0" if pid < 4200 else "1"):
        return False
    main = pid in fake.RANKS
    of_workers = name.startswith(_WORKER) or "worker" in labels
    if (not main or path.name == "children") and fault == "missing":
        return False  # it has ended
    if path.name == "io":
        return name.startswith(("syscall_", "storage_"))
    if path.name == "schedstat":
        return name.startswith(("runqueue", "block")) and labels[3] == ("main" if main else "worker")
    if path.name == "children":
        return of_workers and fault != "empty"  # which most are
    return main or of_workers


def _varies(series: Series) -> bool:
    """Whether a series varies by itself or because a worker has gone. Then the rest of the others is not a loss."""
    return "samples" in series[0] or "blocked" in series[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_each_bad_file_affects_only_its_own_series(ledgers: Path, roots: Roots, fault: str) -> None:
    def make() -> Collector:
        return Scrapes(create, ledgers, roots)

    mains = [str(pid) for pid in fake.RANKS]
    paths = [
        path
        for path in files(Path(roots.procfs))
        if (path.name in ("io", "schedstat") and path.parent.name != str(fake.LAUNCHER))
        or (path.name == "stat" and path.parent.name not in (*mains, str(fake.LAUNCHER)))
        or (path.name == "children" and path.parts[-4] in mains)
    ]
    assert len(paths) == 8 * 2 + 6 + 2 * 2
    for path in paths:
        gone = fault == "missing" or (fault == "empty" and path.name == "children")
        # This kernel may lack the file. It has the file if the previous rank had it.
        counted = not gone or (path.parent.name == mains[1] and path.name in ("io", "schedstat"))
        check(
            lambda: Anew(make) if fault in ("missing", "EINVAL") else make(),
            path,
            fault,
            lambda series, path=path: _spoils(path, fault, series),
            varies=lambda series, gone=gone: _varies(series) or gone,
            counted=counted,
        )


@pytest.mark.parametrize("fault", CONTENTS)
def test_a_rank_that_cannot_be_read_is_absent(ledgers: Path, roots: Roots, fault: str) -> None:
    scrapes = Scrapes(create, ledgers, roots)
    before, _ = read(scrapes)
    with spoilt(Path(roots.procfs, "4100/stat"), fault):
        during, errors = read(scrapes)
    assert not of_rank(during)
    assert of_rank(during, 1).keys() == of_rank(before, 1).keys()
    assert [(error.device, error.file) for error in errors] == [("lab/r1/0", "stat")]
    assert read(scrapes)[0].keys() == before.keys()


def test_another_process_with_the_pid_of_a_rank_is_not_read(ledgers: Path, roots: Roots) -> None:
    scrapes = Scrapes(create, ledgers, roots)
    assert of_rank(read(scrapes)[0])
    stat = Path(roots.procfs, "4100/stat")
    stat.write_text(stat.read_text().replace(f" {fake.START_TICKS} ", " 99999 "))
    series, errors = read(scrapes)
    assert not of_rank(series)
    assert of_rank(series, 1)
    assert not errors


def test_exports_no_block_io_time_without_delay_accounting(ledgers: Path, roots: Roots) -> None:
    Path(roots.procfs, "sys/kernel/task_delayacct").write_text("0\n")
    assert not {key for key in of_rank(read(Scrapes(create, ledgers, roots))[0]) if "block_io" in key[0]}


@pytest.mark.skipif(
    not _may_be_another_user(), reason="needs root, and a Python that all may use: another user's agent"
)
def test_an_agent_of_another_user_reports_what_it_cannot_see(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from support_ranks import Scrapes\n"
        "from whyidle.agent.collectors.process import create\n"
        "from whyidle.agent.reading import Reading\n"
        "reading = Reading(); Scrapes(create, sys.argv[1]).collect(reading)\n"
        "names = {metric.name for metric, samples in reading.samples.items() if samples}\n"
        "print('io' if any('syscall' in name for name in names) else 'no io', 'cpu' if any('cpu' in name for name in"
        " names) else '', len(reading.errors), reading.blind_spots[0].what)\n"
    )
    directory = Path("/dev/shm") / f"whyidle-test-{os.getpid()}"  # where another user may enter
    try:
        with children(directory, Spec()):
            done = subprocess.run(
                [*_AS_ANOTHER, sys.executable, "-c", script, str(directory), str(RANK.parent)],
                capture_output=True,
                text=True,
            )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    assert done.stdout == "no io cpu 0 I/O of ranks\n", done.stderr


# Sums

_steps = st.lists(st.one_of(st.integers(0, 1000), st.just(-1)), max_size=30)


@given(_steps)
def test_a_sum_never_falls_and_follows_what_it_sums(steps: list[int]) -> None:
    rising, raw, last = Rising(), 0, 0
    for step in steps:
        raw = raw + step if step >= 0 else 0
        value = rising.value(raw)
        assert value >= max(last, raw)
        last = value


def test_a_sum_ignores_a_brief_fall_and_continues_after_a_lasting_one() -> None:
    rising = Rising()
    assert [rising.value(raw) for raw in (100, 40, 120)] == [100, 100, 120]
    assert [rising.value(raw) for raw in (40, 50, 60)] == [120, 120, 130]


# Real processes


_SPIN = "import time; end = time.process_time() + 0.4; exec('while time.process_time() < end: pass')"
_READ = "f = open('/dev/zero', 'rb', buffering=0); [f.read(1 << 20) for _ in range(50)]"


def test_counters_do_not_fall_while_workers_come_and_go(tmp_path: Path) -> None:
    with children(tmp_path, Spec(), script=RANK) as (rank,):
        scrapes = Scrapes(create, tmp_path)
        counters = {metric.name for metric in METRICS if metric.type == "counter"}
        last: dict[Series, object] = {}

        def scrape() -> dict[tuple[str, ...], float]:
            nonlocal last
            series, errors = read(scrapes)
            assert not errors
            fallen = {key for key in last if key[0] in counters and series[key] < last[key]}  # type: ignore[operator]
            assert not fallen
            last = series
            return of_rank(series)  # type: ignore[return-value]

        before = scrape()
        assert before["workers",] == 0
        tell(rank, f"start {_SPIN}")
        tell(rank, f"start {_READ}")
        tell(rank, "start import time; time.sleep(0.3)")
        during = scrape()
        assert during["workers",] == 3
        assert during["threads", "worker"] == 3
        assert during["resident_bytes", "worker"] > 3 << 20
        assert during["cpu_seconds_total", "worker", "user"] + during["cpu_seconds_total", "worker", "system"] > 0.35
        assert during["syscall_read_bytes_total",] - before["syscall_read_bytes_total",] > 50 << 20
        assert during["blocked_seconds_total", "worker"] > 0.2
        for number in range(3):
            tell(rank, f"end {number}")
            after = scrape()
            assert after["workers",] == 2 - number
        # One more process that comes and goes between two scrapes.
        tell(rank, f"start {_SPIN}")
        tell(rank, "end 3")
        scrape()
        final = scrape()
        spent = final["cpu_seconds_total", "worker", "user"] + final["cpu_seconds_total", "worker", "system"]
        assert spent > 0.75
        assert final["syscall_read_bytes_total",] < before["syscall_read_bytes_total",] + (70 << 20)  # counted once
        assert final["blocked_seconds_total", "worker"] >= during["blocked_seconds_total", "worker"]


def test_cpu_time_is_that_of_the_kernel(tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    with children(tmp_path / "ledgers", Spec(), script=RANK) as (rank,):
        tell(rank, f"run {_SPIN}")
        tell(rank, f"start {_SPIN}")
        tell(rank, "end 0")
        tell(
            rank,
            "run from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage; "
            "used = [sum(getrusage(who)[:2]) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]; "
            f"open({str(usage)!r}, 'w').write('%f %f' % tuple(used))",
        )
        found = of_rank(read(Scrapes(create, tmp_path / "ledgers"))[0])
    own, theirs = map(float, usage.read_text().split())
    for role, truth in (("main", own), ("worker", theirs)):
        seen = sum(found["cpu_seconds_total", role, mode] for mode in ("user", "system"))  # type: ignore[misc]
        assert truth - 0.03 <= seen <= truth + 0.1


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root: a FUSE mount that hangs")
def test_counts_a_worker_that_waits_for_storage_in_state_d(tmp_path: Path) -> None:
    point = tmp_path / "mount"
    point.mkdir()
    if not may_mount(point):
        pytest.skip("needs root: a FUSE mount that hangs")
    key = (f"{PREFIX}uninterruptible_samples_total", ("lab", "r1", "0", "worker"))
    with children(tmp_path, Spec(), script=RANK) as (rank,):
        scrapes = Scrapes(create, tmp_path)
        assert read(scrapes)[0][key] == 0
        with hung_mount(point):
            code = f"import os; os.statvfs({str(point)!r})"
            tell(rank, f"run import subprocess; subprocess.Popen([sys.executable, '-c', {code!r}])")
            until(lambda: read(scrapes)[0][key])
        samples = (f"{PREFIX}state_samples_total", key[1])
        series, _ = read(scrapes)
        assert 0 < series[key] <= series[samples]  # type: ignore[operator]


def test_ranks_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    scrapes = Scrapes(create, tmp_path)
    with children(tmp_path, Spec()):
        read(scrapes)
    read(scrapes)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with children(tmp_path, Spec(), script=RANK) as (rank,):
            tell(rank, "start pass")
            assert of_rank(read(scrapes)[0])
        assert not read(scrapes)[0]
    until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2)
