"""Which processes are the ranks and their workers: in a simulated /proc, with real processes, and across PID
namespaces."""

from __future__ import annotations

import contextlib
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
from support_ledgers import Spec, children
from support_ranks import tell

from whyidle.agent.collector import Options
from whyidle.agent.files import Roots, Unreadable
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.parsers import locks, pidio, pidstat
from whyidle.agent.processes.descendants import WORKERS
from whyidle.agent.reading import Reading

RANK = Path(support_ranks.__file__)


def _may_unshare() -> bool:
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(not _may_unshare(), reason="needs root: pid namespaces")


def look(directory: Path, roots: Roots | None = None) -> Options:
    options = Options(LedgerStore(str(directory), 60.0), roots or Roots())
    options.ledgers.look()
    return options


def found(options: Options) -> dict[int, tuple[int, tuple[int, ...]]]:
    options.ledgers.look()
    return {one.ledger.rank: (one.pid, one.workers) for one in options.processes.look()}


def blind(options: Options) -> list[str]:
    reading = Reading()
    options.processes.report(reading)
    return [spot.what for spot in reading.blind_spots]


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# Ranks


def test_ranks_of_another_pid_namespace_are_found_by_start_time_pid_and_owner(ledgers: Path, roots: Roots) -> None:
    options = look(ledgers, roots)
    assert found(options) == {0: (4100, (4101, 4102, 4103)), 1: (4200, (4201, 4202, 4203))}
    assert not blind(options)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("stat", f" {fake.START_TICKS} ", f" {fake.START_TICKS + 1} "),
        ("status", "NSpid:\t4100\t17\n", "NSpid:\t4100\t18\n"),
        ("status", f"Uid:\t{os.getuid()}\t{os.getuid()}\t", "Uid:\t77\t77\t"),
        ("status", "NSpid", "Nope"),
    ],
)
def test_a_process_that_does_not_match_a_ledger_is_not_its_writer(
    ledgers: Path, roots: Roots, file: str, old: str, new: str
) -> None:
    rewrite(Path(roots.procfs, "4100", file), old, new)
    options = look(ledgers, roots)
    assert list(found(options)) == [1]
    assert blind(options) == ["the processes of some ranks"]


def test_finds_no_writer_if_two_processes_match(ledgers: Path, roots: Roots) -> None:
    shutil.copytree(Path(roots.procfs, "4100"), Path(roots.procfs, "4999"), symlinks=True)
    assert list(found(look(ledgers, roots))) == [1]


def test_the_lock_holder_is_the_writer_whoever_owns_the_ledger(ledgers: Path, roots: Roots) -> None:
    shutil.copytree(Path(roots.procfs, "4100"), Path(roots.procfs, "4999"), symlinks=True)
    rewrite(Path(roots.procfs, "4100/status"), f"Uid:\t{os.getuid()}\t{os.getuid()}\t", "Uid:\t77\t77\t")
    path = next(rank.newest.path for rank in look(ledgers).ledgers.latest.ranks if rank.newest.rank == 0)
    status = os.stat(path)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    Path(roots.procfs, "locks").write_text(
        f"1: FLOCK  ADVISORY  WRITE 1 {device}:{status.st_ino} 0 EOF\n"
        f"2: POSIX  ADVISORY  READ 2 {device}:{status.st_ino} 0 EOF\n"
        f"3: POSIX  ADVISORY  WRITE 4100 {device}:{status.st_ino} 0 EOF\n"
        f"3: -> POSIX  ADVISORY  WRITE 3 {device}:{status.st_ino} 0 EOF\n"
        "4: OFDLCK ADVISORY  WRITE -1 00:06:1044 0 EOF\n"
    )
    assert found(look(ledgers, roots))[0][0] == 4100


def test_an_ended_rank_has_no_process(tmp_path: Path) -> None:
    with children(tmp_path, Spec(), Spec(rank=1)) as ranks:
        options = look(tmp_path)
        assert {rank: pid for rank, (pid, _) in found(options).items()} == {
            rank: child.process.pid for rank, child in enumerate(ranks)
        }
        ranks[0].kill()
        assert list(found(options)) == [1]
    assert not found(options)


# Workers


def test_a_rank_below_another_one_is_not_its_worker(ledgers: Path, roots: Roots) -> None:
    Path(roots.procfs, "4102/task/4102/children").write_text("4200 ")
    assert found(look(ledgers, roots)) == {0: (4100, (4101, 4102, 4103)), 1: (4200, (4201, 4202, 4203))}


def test_finds_workers_by_their_parents_without_the_list_of_children(ledgers: Path, roots: Roots) -> None:
    for path in Path(roots.procfs).glob("*/task/*/children"):
        path.unlink()
    assert found(look(ledgers, roots)) == {0: (4100, (4101, 4102, 4103)), 1: (4200, (4201, 4202, 4203))}


def test_unreadable_workers_are_unknown_and_not_zero(ledgers: Path, roots: Roots) -> None:
    Path(roots.procfs, "4100/task/4100/children").write_text("four score")
    options = look(ledgers, roots)
    known = {one.ledger.rank: one.workers_known for one in options.processes.look()}
    assert known == {0: False, 1: True}
    reading = Reading()
    options.processes.report(reading)
    assert reading.errors == [("lab/r1/0", "children", "garbage")]


def test_number_and_depth_of_workers_are_bounded(ledgers: Path, roots: Roots) -> None:
    task = Path(roots.procfs, "4100/task/4100/children")
    task.write_text("4100 4101 " + " ".join(map(str, range(10_000, 20_000))))
    workers = found(look(ledgers, roots))[0][1]
    assert len(workers) == len(set(workers)) == WORKERS
    assert 4100 not in workers


def test_finds_workers_of_any_thread_as_they_come_and_go(tmp_path: Path) -> None:
    with children(tmp_path, Spec(), script=RANK) as (rank,):
        options = look(tmp_path)
        assert found(options) == {0: (rank.process.pid, ())}
        first = tell(rank, "start pass")
        second = tell(rank, "start import subprocess; p = subprocess.Popen(['sleep', '1000'])")
        assert found(options)[0][1][:2] == (first, second)
        third = tell(rank, "thread pass")
        fresh = look(tmp_path)
        workers = found(fresh)[0][1]
        assert {first, second, third} < set(workers)
        assert len(workers) == 4  # including what the second one started
        tell(rank, "end 0")
        assert set(found(fresh)[0][1]) == set(workers) - {first}
        os.kill(workers[3], 9)


# Namespaces

_LOOK = """
import sys
from whyidle.agent.collector import Options
from whyidle.agent.files import Roots
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.reading import Reading
options = Options(LedgerStore(sys.argv[1], 60.0), Roots(procfs=sys.argv[2]))
options.ledgers.look()
pids = [(one.ledger.visible_pid, one.pid, len(one.workers)) for one in options.processes.look()]
reading = Reading()
options.processes.report(reading)
print(pids, len(reading.blind_spots))
"""


@needs_namespaces
def test_finds_a_rank_in_a_pid_namespace_from_outside(tmp_path: Path) -> None:
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(
        "import os, sys\n"
        f"command = ['unshare', '--pid', '--fork', '--kill-child', '--mount-proc', {sys.executable!r}, {str(RANK)!r}]\n"
        "os.execvp(command[0], command + sys.argv[1:])\n"
    )
    directory = tmp_path / "ledgers"
    with children(directory, Spec(), script=wrapper) as (rank,):
        options = look(directory)
        ((pid, workers),) = found(options).values()
        (ledger,) = (one.ledger for one in options.processes.look())
        assert ledger.pid == 1
        assert pid == ledger.visible_pid != rank.process.pid
        assert not workers
        inside = tell(rank, "start pass")
        (worker,) = found(options)[0][1]
        assert worker != inside


@needs_namespaces
def test_finds_a_rank_of_another_pid_namespace_only_through_the_hosts_proc(tmp_path: Path) -> None:
    proc = tmp_path / "host"
    proc.mkdir()
    with children(tmp_path / "ledgers", Spec(), script=RANK) as (rank,):
        tell(rank, "start pass")

        def inside(procfs: str) -> str:
            script = f'mount --bind /proc {proc} && exec unshare --pid --fork --mount-proc {sys.executable} -c "$0" $@'
            command = ["unshare", "--mount", "sh", "-c", script, _LOOK, str(tmp_path / "ledgers"), procfs]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

        assert inside("/proc") == "[] 1"
        assert inside(str(proc)) == f"[(0, {rank.process.pid}, 1)] 0"


# Formats


@given(st.binary(max_size=400))
def test_parsers_raise_only_unreadable(data: bytes) -> None:
    for parse in (pidstat.parse, pidstat.identity, pidstat.children, pidio.parse, pidio.schedstat):
        with contextlib.suppress(Unreadable):
            parse(data)
    locks.holders(data)


@given(st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=15))
def test_parses_any_program_name(name: str) -> None:
    stat = Path("/proc/self/stat").read_bytes()
    plain = pidstat.parse(stat)
    renamed = stat[: stat.index(b"(") + 1] + name.encode() + stat[stat.rindex(b")") :]
    assert pidstat.parse(renamed) == plain


def test_reads_this_process() -> None:
    stat = pidstat.parse(Path("/proc/self/stat").read_bytes())
    assert (stat.state, stat.parent) == ("R", os.getppid())
    status = pidstat.identity(Path("/proc/self/status").read_bytes())
    assert (status.pids[-1], status.uid) == (os.getpid(), os.geteuid())
