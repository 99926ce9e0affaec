"""What works beside a training is seen, and how much of the time it works."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import pytest
from support_ledgers import until

from whyidle.ledger.background import BACKGROUND_LABELS, BACKGROUNDS, KINDS
from whyidle.ledger.beside import Block
from whyidle.ledger.causes import PHASE
from whyidle.ledger.layout import SEQUENCE
from whyidle.ledger.reader import Ledger, parse_ledger
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks.beside import node, own
from whyidle.torch_hooks.beside.probe import BackgroundLooks
from whyidle.torch_hooks.hooks import checkpoint
from whyidle.torch_hooks.machine import PhaseMachine
from whyidle.torch_hooks.proc import read_bytes, read_table
from whyidle.torch_hooks.returns import CheckpointFile
from whyidle.torch_hooks.session import Session

SECOND = 1_000_000_000


def spins(over: threading.Event) -> Callable[[], None]:
    def spin() -> None:
        while not over.is_set():
            sum(range(1000))

    return spin


# -- saves


def test_a_save_behind_the_loop_works_from_its_begin_to_its_end() -> None:
    behind = own.Behind()
    assert behind.works(time.monotonic_ns()) == {}
    behind.begins()
    time.sleep(0.02)
    assert 0 < behind.works(time.monotonic_ns())["save"] <= 1
    time.sleep(0.01)
    assert behind.works(time.monotonic_ns())["save"] == 1.0
    behind.ends()
    behind.works(time.monotonic_ns())
    assert behind.works(time.monotonic_ns()) == {}


def test_a_save_that_has_begun_before_the_last_look_still_counts_whole() -> None:
    """The call that begins it has only now returned."""
    behind, now = own.Behind(), time.monotonic_ns()
    behind.works(now - 5 * SECOND)
    behind.works(now - SECOND)
    behind.begins(at_ns=now - 4 * SECOND)
    assert behind.works(now)["save"] == pytest.approx(4.0)


def test_saves_that_end_twice_or_were_never_begun_do_no_harm() -> None:
    behind = own.Behind()
    behind.works(time.monotonic_ns())
    behind.ends()
    behind.ends()
    behind.begins()
    behind.works(time.monotonic_ns())
    assert behind.works(time.monotonic_ns() + SECOND) == {"save": 1.0}


class Kind(Enum):
    THREAD = "thread"
    PROCESS = "process"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    found = Session()
    found.writer = LedgerWriter(str(tmp_path), {"run": "r"}, {"start_ns": time.monotonic_ns(), "pid": os.getpid()})
    found.machine = PhaseMachine(found.writer.words, time.monotonic_ns())
    yield found
    found.writer.close()


@pytest.mark.parametrize(("kind", "label"), [(Kind.THREAD, "save"), (Kind.PROCESS, "save process")])
def test_an_asynchronous_save_works_until_its_future_is_done(session: Session, kind: Kind, label: str) -> None:
    future: Future[None] = Future()
    behind = session.saves.behind
    behind.works(time.monotonic_ns())
    save = checkpoint._saving_behind(session)(lambda *args, **kwargs: future)
    assert save({}, async_checkpointer_type=kind) is future
    behind.works(time.monotonic_ns())
    assert behind.works(time.monotonic_ns()) == {label: 1.0}
    future.set_result(None)
    behind.works(time.monotonic_ns())
    assert behind.works(time.monotonic_ns()) == {}


def test_an_asynchronous_save_without_a_future_never_seems_to_go_on(session: Session) -> None:
    assert checkpoint._saving_behind(session)(lambda *args, **kwargs: None)({}) is None
    session.saves.behind.works(time.monotonic_ns())
    assert session.saves.behind.works(time.monotonic_ns()) == {}


def test_a_save_in_another_thread_is_one_behind_the_loop_also_if_it_fails(session: Session) -> None:
    seen: list[own.Shares] = []

    def original(*args: object) -> None:
        session.saves.behind.works(time.monotonic_ns())
        seen.append(session.saves.behind.works(time.monotonic_ns()))
        raise OSError("the disk is full")

    save = checkpoint.saving(session, lambda args, kwargs: CheckpointFile())(original)

    def saves() -> None:
        with pytest.raises(OSError, match="full"):
            save({}, "file")

    for each in (saves, lambda: threads_run(saves)):
        each()
    assert seen == [{}, {"save": 1.0}]
    session.saves.behind.works(time.monotonic_ns())
    assert session.saves.behind.works(time.monotonic_ns()) == {}


def threads_run(target: Callable[[], None]) -> None:
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()


# -- threads and processes


def test_a_thread_that_computes_works_and_one_that_has_ended_may_have() -> None:
    over, threads = threading.Event(), own.Threads(threading.get_native_id())
    threads.works(time.monotonic_ns())
    thread = threading.Thread(target=spins(over), name="Thread-7 (saver)")
    thread.start()
    try:
        assert until(lambda: threads.works(time.monotonic_ns()).get("thread saver", 0) >= 0.1)
    finally:
        over.set()
        thread.join()
    assert threads.works(time.monotonic_ns())["thread saver"] > 0
    assert "thread saver" not in threads.works(time.monotonic_ns())


@pytest.mark.parametrize("name", ["whyidle-watcher", "Thread-3 (_pin_memory_loop)"])
def test_threads_of_whyidle_and_of_loaders_do_not_count(name: str) -> None:
    over, threads = threading.Event(), own.Threads(threading.get_native_id())
    thread = threading.Thread(target=spins(over), name=name)
    thread.start()
    try:
        threads.works(time.monotonic_ns())
        time.sleep(0.05)
        assert not any(
            label in ("thread whyidle-watcher", "thread _pin_memory_loop")
            for label in threads.works(time.monotonic_ns())
        )
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (["train.py", "-c"], "train.py"),
        (["-u", "/home/me/train.py"], "train.py"),
        (["-um", "torch.distributed.run"], "torch.distributed.run"),
        (["-X", "dev", "-W", "error", "-m", "pytest"], "pytest"),
        (["-Xdev", "-mpytest"], "pytest"),
        (["-u", "-c", "import time; time.sleep(1)"], ""),
        (["-Bc", "print(1)", "train.py"], ""),
        (["-B", "-c", "from multiprocessing.forkserver import main; main(3, 4)"], "forkserver"),
        (["--check-hash-based-pycs", "never", "train.py"], "train.py"),
        ([], ""),
    ],
)
def test_what_a_python_runs(words: list[str], script: str) -> None:
    """Never code that its arguments contain: this is the name of a work in ledgers and reports."""
    assert own._script(words) == script


def test_a_table_of_the_kernel_may_have_more_than_a_page() -> None:
    assert len(read_bytes("/proc/kallsyms", 1 << 16)) < 1 << 13
    assert 1 << 16 <= len(read_table("/proc/kallsyms", 1 << 16)) < 1 << 18


def test_a_child_that_computes_works_but_a_data_worker_does_not_count() -> None:
    workers: set[int] = set()
    processes = own.Processes(lambda: workers)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            program = os.path.basename(sys.executable)
            assert until(lambda: processes.works(time.monotonic_ns()).get(f"process {program}", 0) >= 0.1)
            workers.add(child.pid)
            processes.works(time.monotonic_ns())
            assert f"process {program}" not in processes.works(time.monotonic_ns())
        finally:
            child.kill()
    assert own.tree_cpu(child.pid) is None


def test_a_process_without_a_name_yet_gets_one_later(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = own.Processes(set)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        names = iter(["?", "python"])
        monkeypatch.setattr(own, "program_of", lambda pid: next(names) if pid == child.pid else "other")
        try:
            for _ in range(2):
                processes.works(time.monotonic_ns())
            assert until(lambda: "process python" in processes.works(time.monotonic_ns()))
        finally:
            child.kill()


def test_the_cpu_time_of_data_workers_that_have_ended_belongs_to_no_other_process() -> None:
    workers: set[int] = set()
    processes = own.Processes(lambda: workers)
    busy = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"]
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with subprocess.Popen(busy, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        workers.add(worker.pid)
        for _ in range(2):
            processes.works(time.monotonic_ns())
        worker.communicate("\n")
        time.sleep(0.01)
        shares = processes.works(time.monotonic_ns())
    other.kill()
    other.wait()
    assert max(shares.values(), default=0.0) < 0.5, shares


def test_a_child_that_a_thread_has_started_counts_as_long_as_the_thread_lives_and_after_it() -> None:
    processes, children = own.Processes(set), []
    threads_run(lambda: children.append(subprocess.Popen([sys.executable, "-c", "while True: pass"])))
    over = threading.Event()
    thread = threading.Thread(
        target=lambda: (children.append(subprocess.Popen([sys.executable, "-c", "while True: pass"])), over.wait())
    )
    thread.start()
    try:
        until(lambda: len(children) == 2)
        assert {child.pid for child in children} <= {*processes.own()}
        over.set()
        thread.join()
        assert until(lambda: {child.pid for child in children} <= {*processes.own()})
    finally:
        over.set()
        for child in children:
            child.kill()
            child.wait()


def test_a_python_is_named_after_what_it_runs(tmp_path: Path) -> None:
    script = tmp_path / "evaluate.py"
    script.write_text("import time; print(flush=True); time.sleep(60)")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            assert own.program_of(child.pid) == "evaluate.py"
        finally:
            child.kill()


# -- the node


def test_the_time_of_all_cpus_is_what_is_not_idle() -> None:
    tick = SECOND // os.sysconf("SC_CLK_TCK")
    assert node.busy_ns(b"cpu  10 20 30 1000 500 1 2 3 0 0\ncpu0 1 2 3 4\n") == 66 * tick
    assert [node.busy_ns(text) for text in (b"", b"cpu  1 2\n", b"intr 5\n")] == [0, 0, 0]


def test_the_bytes_of_disks_and_interfaces_are_those_of_the_kernel() -> None:
    line = b"   7       0 loop0 5 0 80 9 7 0 160 9 0 9 9 0 0 0 0 0 0\n"
    assert node.moved_by_disks(line + b"   7  1 loop1\n\n", ["loop0", "loop1", "sda"]) == {"loop0": (40960, 81920)}
    table = b"Inter-|\n face |\n  eth0: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n"
    assert node.moved(table, ["eth0", "eth1"]) == {"eth0": 300}
    assert node.moved(b"", ["eth0"]) == {}


def test_a_transfer_on_a_link_is_what_the_own_connections_do_not_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    own_bytes, others = 0, 0
    monkeypatch.setattr(node, "moved", lambda table, names: dict.fromkeys(names, own_bytes * 11 // 10 + others))
    links = node.Links(lambda: {"eth0": own_bytes})
    found = []
    for number in range(20):
        own_bytes += 10_000_000
        others += {14: 300_000, 15: 5_000_000}.get(number, 10_000_000 if number > 15 else 0)
        found.append(links.works(number * SECOND).get("link eth0", 0.0))
    assert found[:15] == [0.0] * 15  # some may be on its way
    assert found[15:] == pytest.approx([5 / 16, *[10 / 21] * 4])
    assert node.Links(dict).works(SECOND) == {}


def test_the_usual_is_a_low_quantile_once_there_are_some_values() -> None:
    usual = node.Usual(0.25, 4)
    assert [usual.add(value) for value in (5.0, 1.0, 9.0)] == [None] * 3
    assert usual.add(2.0) == 2.0  # not the lowest one, which may be an error


def test_a_job_without_other_ranks_has_no_neighbours_among_its_own(tmp_path: Path) -> None:
    (tmp_path / "0-999999999-abc.ledger").touch()
    (tmp_path / "nonsense").touch()
    neighbours = node.Neighbours(str(tmp_path), list)
    for _ in range(10):
        for share in neighbours.works(time.monotonic_ns()).values():
            assert 0 <= share <= 1


BY_A_FORK_SERVER = """
import multiprocessing, sys, time
from whyidle.torch_hooks.beside import node, own
def work(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: pass
if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    processes = own.Processes(lambda: pids)
    neighbours = node.Neighbours(sys.argv[1], processes.own)
    pids, found = set(), [neighbours._own_cpu()]
    workers = [context.Process(target=work, args=(each,)) for each in (0.4, 60.0)]
    for worker in workers: worker.start()
    pids |= {worker.pid for worker in workers}
    processes.works(time.monotonic_ns())
    workers[0].join()
    time.sleep(0.2)
    shares = processes.works(time.monotonic_ns())
    print(neighbours._own_cpu() - found[0], {label: share for label, share in shares.items() if share > 0.2})
    workers[1].kill()
"""


def test_the_workers_of_a_fork_server_belong_to_the_rank(tmp_path: Path) -> None:
    """The default of Python 3.14. Python -B tells the server's code as an argument."""
    (tmp_path / "train.py").write_text(BY_A_FORK_SERVER)
    words = [sys.executable, "-B", "train.py", str(tmp_path)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    computed, _, shares = done.stdout.partition(" ")
    assert int(computed) > 0.8 * SECOND
    assert shares == "{}\n"


def test_a_fork_server_is_known_once_it_has_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its three workers ends while they are asked for their CPU time."""
    names, server = iter(["train.py", "?", own.FORK_SERVER]), os.getpid()

    def cpu(pid: int) -> int:
        if pid == 2:
            raise ProcessLookupError
        return SECOND

    monkeypatch.setattr(node, "program_of", lambda pid: next(names))
    monkeypatch.setattr(node, "children", lambda pid: [1, 2, 3])
    monkeypatch.setattr(node, "reaped_ns", lambda pid: 5 * SECOND)
    monkeypatch.setattr(node, "process_cpu", cpu)
    monkeypatch.setattr(own, "process_cpu", cpu)
    neighbours = node.Neighbours(str(tmp_path), lambda: [server])
    found = [round(neighbours._own_cpu() / SECOND) for _ in range(4)]
    assert [each - found[0] for each in found] == [0, 0, 7, 7]


def test_there_is_no_neighbour_where_a_rank_has_ended_and_none_takes_more_cpus_than_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU time of a rank that has ended is missing: a neighbour would seem to have spent it at once."""
    busy = spent = 0
    monkeypatch.setattr(node, "busy_ns", lambda stat: busy)
    neighbours = node.Neighbours(str(tmp_path), list)
    monkeypatch.setattr(neighbours, "_own_cpu", lambda: spent)
    cpus, found = os.cpu_count() or 1, []
    for number in range(1, 31):
        busy, spent = busy + SECOND // 2, spent + SECOND // 4
        spent -= 3600 * SECOND * (number == 20)
        busy += cpus * SECOND * (number == 25)
        found.append(neighbours.works(number * SECOND).get("neighbour", 0.0))
    assert found[24] == 1.0
    assert sum(found) == 1.0
    assert neighbours._most <= cpus


# -- the probe


class Told:
    """A source that says what a test wants."""

    def __init__(self) -> None:
        self.shares: own.Shares = {}

    def works(self, now_ns: int) -> own.Shares:
        return self.shares


class Rank:
    """Steps of a rank, and looks at them. Each step takes as long as its test wants, on a clock that is set."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        self.now = time.monotonic_ns() - 1000 * SECOND
        monkeypatch.setattr("whyidle.torch_hooks.machine._now", lambda: self.now)
        monkeypatch.setattr("whyidle.torch_hooks.beside.probe._now", lambda: self.now)
        self.writer = LedgerWriter(str(tmp_path), {"run": "r"}, {"start_ns": self.now, "pid": os.getpid()})
        self.machine = PhaseMachine(self.writer.words, self.now)
        self.machine.begin()
        self.told = Told()
        monkeypatch.setattr(own, "time", SimpleNamespace(monotonic_ns=lambda: self.now))
        self.behind = own.Behind()
        self.looks = BackgroundLooks(self.machine, self.behind, set, str(tmp_path), dict)
        self.looks._sources = [self.told]
        self.blocks: list[Block] = []
        add = self.looks._comparisons.add
        monkeypatch.setattr(self.looks._comparisons, "add", lambda block: (self.blocks.append(block), add(block)))

    def steps(self, count: int, ns: int, after: float = 0, **shares: float) -> None:
        """``after``: how long after the last of them the look comes."""
        self.told.shares = shares
        for _ in range(count):
            self.now += ns
            self.machine.boundary(PHASE["compute"])
        self.now += round(after)
        self.looks.look()

    def ledger(self) -> Ledger:
        return parse_ledger(self.writer.copy(), self.writer.path, alive=True)


def test_what_a_work_has_cost_is_in_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(tmp_path, monkeypatch)
    for _ in range(4):
        for _ in range(5):
            rank.steps(10, SECOND // 10)
        rank.steps(10, SECOND // 5, **{"thread t": 1.0})
    for _ in range(5):
        rank.steps(10, SECOND // 10)
    (found,) = rank.ledger().backgrounds
    assert (found.kind, found.name, found.stretches, found.step_ns) == ("thread", "t", 4, SECOND // 10)
    assert (found.worked_ns, found.most) == (8 * SECOND, 1.0)
    assert found.sums["rate_change"] / found.sums["squares"] == pytest.approx(-0.5)


def test_a_work_that_ends_between_two_steps_has_its_part_of_both_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look comes 0.2 s after the end of a step. What it finds in these belongs to the next block."""
    rank = Rank(tmp_path, monkeypatch)
    rank.steps(2, SECOND)
    rank.steps(4, SECOND, after=SECOND // 5, **{"thread t": 1.0})
    rank.steps(4, SECOND)
    shares = [block.works.get("thread t", 0.0) for block in rank.blocks]
    assert shares == pytest.approx([1.0, 0.2 / 4.2])


def test_steps_beside_a_save_are_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a save begins and ends is known exactly. Here all of it is between two looks."""
    rank = Rank(tmp_path, monkeypatch)
    rank.looks._sources = [rank.behind]
    rank.steps(2, SECOND)
    for after in (4, 6, 10):
        for _ in range(after):
            rank.now += SECOND
            rank.machine.boundary(PHASE["compute"])
        if after < 10:
            rank.now += SECOND // 2
            (rank.behind.begins if after == 4 else rank.behind.ends)()
    rank.steps(1, SECOND)
    assert [(block.steps, block.ns // SECOND) for block in rank.blocks] == [(5, 5), (6, 6), (10, 10)]
    assert [block.works.get("save", 0.0) for block in rank.blocks] == pytest.approx([1 / 5.5, 5.5 / 6.5, 0.0])


def test_a_block_goes_on_while_a_step_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(tmp_path, monkeypatch)
    rank.steps(2, SECOND)
    rank.steps(2, SECOND, after=2 * SECOND)
    assert rank.blocks == []
    rank.steps(2, SECOND)
    assert [block.steps for block in rank.blocks] == [4]


def test_looks_without_a_new_step_and_during_an_update_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = Rank(tmp_path, monkeypatch)
    rank.looks.look()
    rank.steps(1, SECOND)
    rank.looks.look()
    rank.writer.words[SEQUENCE] += 1
    rank.looks.look()
    rank.writer.words[SEQUENCE] += 1
    rank.looks.close()
    assert rank.ledger().backgrounds == []


def test_looks_come_soon_while_something_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(tmp_path, monkeypatch)
    rank.steps(2, SECOND)
    assert rank.looks.soon() == 0
    rank.steps(2, SECOND, **{"thread t": 1.0})
    assert rank.looks.soon() > 0
    rank.steps(2, SECOND)
    assert rank.looks.soon() == 0


def test_more_works_than_the_ledger_has_places_for_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = Rank(tmp_path, monkeypatch)
    for number in range(BACKGROUNDS + 3):
        for _ in range(3):
            rank.steps(10, SECOND // 10)
        rank.steps(10, SECOND // 10, **{f"thread {number} {'x' * 90}": 1.0})
    rank.steps(10, SECOND // 10)
    found = rank.ledger()
    assert len(found.backgrounds) == BACKGROUNDS == len(BACKGROUND_LABELS)
    assert {one.kind for one in found.backgrounds} <= {*KINDS}


def test_the_ends_of_the_interpreter_and_of_the_watcher_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = Rank(tmp_path, monkeypatch)
    rank.looks._comparisons = None  # type: ignore[assignment]
    rank.looks.close()
