"""A run that goes on from a checkpoint: after a crash or a preemption, or because somebody has chosen an older one."""

from __future__ import annotations

import io
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support_forks import Forks
from support_ledgers import Spec, ended

from whyidle.advisor.goodput import Goodput, goodput
from whyidle.cli.main import main
from whyidle.ledger.causes import CAUSE, PHASE
from whyidle.ledger.directory import read_directory
from whyidle.ledger.layout import BRANCHED, CONTINUED, HEAD_BYTES, RETURNED, SAVES_KEPT, WORD_AT
from whyidle.ledger.reader import Saved, parse_ledger
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks.ending import watch_stop
from whyidle.torch_hooks.exchange import restored
from whyidle.torch_hooks.identity import identify
from whyidle.torch_hooks.machine import CONTINUES, LEAST_WAIT, PhaseMachine
from whyidle.torch_hooks.meters.save import SaveMeter
from whyidle.torch_hooks.restart import FIRST, Restart, own_ledgers, restart_of
from whyidle.torch_hooks.returns import (
    CheckpointFile,
    beginning_of,
    command_hash,
    directory_of,
    file_of,
    hash_of,
    match,
    step_in,
)
from whyidle.torch_hooks.session import Session
from whyidle.torch_hooks.wait_codes import wait_code

SAVED = 8
"""The newest checkpoint of the first attempt, which ends after step 10."""


@dataclass(frozen=True)
class Case:
    how: str
    began: str
    return_to: str = ""
    more: tuple[str, ...] = ()

    @property
    def base(self) -> int:
        return int(self.return_to or SAVED)


CASES = {
    "branch": Case("end", "branched", "4", ("--lr", "0.01")),
    "crash": Case("kill", "crash"),
    "preemption": Case("term", "preemption"),
    "manual return": Case("end", "returned", "4"),
}


def looked_at(folder: Path) -> Goodput:
    return goodput((owner(folder), "r"), read_directory(str(folder), steps=True)[0], time.monotonic_ns())


def owner(folder: Path) -> str:
    return read_directory(str(folder))[0][0].owner


def trained(case: Case, folder: Path, forks: Forks, ranks: int, nodes: int) -> list[Path]:
    """The directories of ledgers, one for each node."""
    own = {
        rank: {"WHYIDLE_DIR": str(folder / f"n{rank % nodes}"), "WHYIDLE_NODE": f"n{rank % nodes}"} for rank in (0, 1)
    }
    for more, chosen in (((), ""), (case.more, case.return_to)):
        env = {"WHYIDLE_RUN": "r", "RETURN_TO": chosen, **({} if ranks else own[0])}
        outcome, codes = forks.run(("returns.py", case.how, *more), folder, ranks, env, each=own if ranks else None)
        assert all(one.facts["own handler"] for one in outcome.told), outcome.stderr
    assert not any(codes), outcome.stderr
    return [folder / f"n{node}" for node in range(nodes)]


def assert_says(case: Case, found: Goodput) -> None:
    first, second = found.attempts
    assert (first.began, second.began, second.restored_step) == ("first", case.began, case.base)
    assert (first.base, second.base, second.restored_from) == (0, case.base, 0)
    off = first.steps - case.base
    assert 0 < off <= 10 - case.base
    branch = case.began == "branched"
    assert (first.branched, second.repeated) == ((off, 0) if branch else (0, min(off, second.steps)))
    assert (found.seconds["branched"] > 0, found.seconds["lost"] > 0) == (branch, not branch)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_tells_apart_why_a_run_goes_on_from_a_checkpoint(
    case: Case, tmp_path: Path, forks: Forks, capsys: pytest.CaptureFixture[str]
) -> None:
    [folder] = trained(case, tmp_path, forks, 0, 1)
    found = looked_at(folder)
    assert_says(case, found)
    newest = max(read_directory(str(folder), steps=True)[0], key=lambda ledger: ledger.attempt)
    repeated = [step.number for step in newest.ring if step.causes[CAUSE["recompute"]]]
    assert bool(repeated) == (case.began != "branched")
    assert main(["goodput", "r", "--dir", str(folder)]) == 0
    said = {
        "branched": "branch from step 4 of attempt 0",
        "returned": "manual return to step 4 of attempt 0",
    }.get(case.began, f"after a {case.began}")
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_both_of_two_nodes_know_it_although_only_one_rank_saves(case: Case, tmp_path: Path, forks: Forks) -> None:
    """Two ranks with a directory of ledgers each."""
    for folder in trained(case, tmp_path, forks, 2, 2):
        found = looked_at(folder)
        assert {one.ranks for one in found.attempts} == {1}
        assert_says(case, found)


# -- which save a file is


SAVES = [
    Saved(100, 0, hash_of("/c/100.pt"), 1_000),
    Saved(200, 0, hash_of("/c/last.pt"), 2_000),
    Saved(300, 1, hash_of("/c/last.pt"), 3_000),
    Saved(400, 1, hash_of("/c/checkpoint-400"), -(10**18)),
    Saved(500, 1, 0, -(2 * 10**18)),
]


@pytest.mark.parametrize(
    ("file", "step"),
    [
        (CheckpointFile(path=1, modified_ns=2_000), 200),
        (CheckpointFile(path=hash_of("/c/last.pt"), modified_ns=3_000), 300),
        (CheckpointFile(path=hash_of("/c/last.pt"), modified_ns=1_000), 100),
        (CheckpointFile(path=hash_of("/c/last.pt")), 300),
        (CheckpointFile(folder=hash_of("/c/checkpoint-400"), modified_ns=7), 400),
        (CheckpointFile(modified_ns=2 * 10**18 + 1), 500),
        (CheckpointFile(step=299), 300),
        (CheckpointFile(step=200), 200),
        (CheckpointFile(path=hash_of("/c/last.pt"), modified_ns=9_999), None),
        (CheckpointFile(step=150), None),
        (CheckpointFile(), None),
    ],
    ids=[
        "renamed",
        "overwritten each time",
        "an older one copied with its time to the same name",
        "no times",
        "a framework's directory",
        "a save without a path",
        "counts from 0",
        "counts from 1",
        "replaced since",
        "another step",
        "nothing known",
    ],
)
def test_finds_the_save_whose_file_was_loaded(file: CheckpointFile, step: int | None) -> None:
    found = match(SAVES, file)
    assert (found and found.step) == step


@pytest.mark.parametrize(
    ("steps", "by_launcher", "command", "expected"),
    [
        ([], False, 7, None),
        ([CheckpointFile()], False, 7, (CONTINUED, 500, 1, 520)),
        ([CheckpointFile(step=500)], False, 8, (CONTINUED, 500, 1, 520)),
        ([CheckpointFile(step=100)], False, 7, (RETURNED, 100, 0, 520)),
        ([CheckpointFile(step=100)], False, 8, (BRANCHED, 100, 0, 0)),
        ([CheckpointFile(step=100)], False, 0, (RETURNED, 100, 0, 520)),
        ([CheckpointFile(step=100)], True, 8, (CONTINUED, 100, 0, 520)),
        ([CheckpointFile(step=100), CheckpointFile(), CheckpointFile(step=300)], False, 8, (BRANCHED, 300, 1, 0)),
    ],
    ids=[
        "no file",
        "an unknown file",
        "the newest, another command",
        "an older one, the same command",
        "an older one, another command",
        "an unknown command",
        "a launcher that falls back to an older one",
        "several files",
    ],
)
def test_concludes_how_an_attempt_goes_on(
    steps: list[CheckpointFile], by_launcher: bool, command: int, expected: tuple[int, ...] | None
) -> None:
    before = Restart(2, 520, 500, False, 1, by_launcher, 7, tuple(SAVES))
    found = beginning_of(before if steps else FIRST, steps, command)
    assert found == expected


def test_the_newest_checkpoint_is_that_of_the_newest_attempt_and_a_branch_begins_a_line(tmp_path: Path) -> None:
    """Attempt 1 has returned to step 10 and has saved step 20; attempt 2 is a branch that has saved nothing."""
    first = Spec(run="llama", steps=50, words={"checkpoint_step": 40}, failed=True)
    second = replace(first, attempt=1, steps=15, words={"base_step": 10, "checkpoint_step": 20, "beginning": RETURNED})
    ended(tmp_path, first, second)
    who = replace(identify({}), owner="lab", run="llama", node="n1", rank=0, attempt=0, resumable=True)
    found = restart_of(own_ledgers(str(tmp_path)), who)
    assert (found.steps, found.checkpoint_step, found.saved_by) == (50, 20, 1)
    words = {"base_step": 10, "beginning": BRANCHED, "restored_step": 11, "restored_attempt": 1, "checkpoint_step": -1}
    ended(tmp_path, replace(first, attempt=2, steps=5, words=words))
    found = restart_of(own_ledgers(str(tmp_path)), who)
    assert (found.steps, found.checkpoint_step, found.saved_by) == (15, 10, 0)


def test_a_ledger_keeps_the_last_saves(tmp_path: Path) -> None:
    noted = SAVES_KEPT + 2
    words = {"saves_noted": noted, "saved_step": 40 * noted, "saved_unix_ns": -7, "saved_path": 5}
    ended(tmp_path, Spec(steps=1, words=words))
    [ledger] = read_directory(str(tmp_path))[0]
    assert len(ledger.saves) == SAVES_KEPT
    assert ledger.saves[SAVES_KEPT - 2] == Saved(40 * noted, 0, 5, -7)


def test_a_save_is_in_the_file_when_it_has_ended(tmp_path: Path) -> None:
    """A rank may be killed before the next boundary at which it writes. The next attempt restores this save."""
    session, now = Session(), time.monotonic_ns()
    session.writer = LedgerWriter(str(tmp_path), {"run": "r"}, {"start_ns": now, "pid": os.getpid()})
    session.machine = PhaseMachine(session.writer.words, now)
    time.sleep(0.02)
    session.saves.done("save", CheckpointFile(size=5, path=7))
    ledger = parse_ledger(Path(session.writer.path).read_bytes(), session.writer.path, alive=True)
    assert [save.path for save in ledger.saves] == [7]
    session.writer.close()


def test_looks_at_files_of_each_kind(tmp_path: Path) -> None:
    path = tmp_path / "one.pt"
    path.write_bytes(b"12345")
    by_path = file_of(path)
    assert by_path == file_of(str(path))
    assert (by_path.size, by_path.modified_ns) == (5, path.stat().st_mtime_ns)
    with path.open("rb") as file:
        assert file_of(file) == by_path._replace(size=0)
    with path.open("wb") as file:
        assert file_of(file) == by_path._replace(size=0, modified_ns=0)
    assert file_of(io.BytesIO(b"1")) == file_of(None) == file_of(tmp_path / "missing") == CheckpointFile()
    assert directory_of(tmp_path, 3).size == 3
    assert directory_of(tmp_path).modified_ns == 0
    (tmp_path / ".metadata").touch()
    assert directory_of(tmp_path).modified_ns == (tmp_path / ".metadata").stat().st_mtime_ns
    assert directory_of(object()) == CheckpointFile()


@pytest.mark.parametrize(
    ("loaded", "step"),
    [
        ({"step": 7}, 7),
        ({"model": 1, "global_step": 8, "step": 9}, 8),
        ({"step": True}, -1),
        ({"step": -1}, -1),
        (3, -1),
    ],
)
def test_reads_the_step_of_a_checkpoint_only_from_plain_numbers(loaded: object, step: int) -> None:
    assert step_in(loaded) == step


def test_the_command_is_its_words_and_the_configuration_files_that_they_name(tmp_path: Path) -> None:
    config = tmp_path / "lr.yaml"
    config.write_text("lr: 0.1")
    words = ["train.py", "--config=" + str(config), str(tmp_path / "missing.yaml"), str(tmp_path)]
    before = command_hash(words)
    assert before == command_hash(words) != command_hash([*words, "--lr"])
    config.write_text("lr: 0.2")
    assert command_hash(words) != before
    os.mkfifo(tmp_path / "pipe.yaml")
    assert command_hash([str(tmp_path / "pipe.yaml")]) > 0


# -- a signal


def test_a_handler_of_the_training_runs_as_before_and_is_noted() -> None:
    told: list[int] = []
    ran: list[int] = []
    before = signal.getsignal(signal.SIGTERM)

    def handler(number: int, frame: object) -> None:
        ran.append(number)

    def broken(number: int) -> None:
        told.append(number)
        raise RuntimeError

    undo = watch_stop(broken)
    try:
        assert signal.signal(signal.SIGTERM, handler) is before
        assert signal.getsignal(signal.SIGTERM) is handler
        signal.raise_signal(signal.SIGTERM)
        assert (told, ran) == ([signal.SIGTERM], [signal.SIGTERM])
        assert signal.signal(signal.SIGTERM, signal.SIG_IGN) is handler
        with pytest.raises(TypeError):
            signal.signal(signal.SIGTERM, "nonsense")  # pyright: ignore[reportArgumentType]
    finally:
        signal.signal(signal.SIGTERM, before)
        undo()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("phase", "saves"),
    [(PHASE["data"], 1), (wait_code(1), 1), (PHASE["compute"], 1), (PHASE["checkpoint"], 0)],
    ids=["data", "collective", "compute", "checkpoint"],
)
def test_a_save_in_a_handler_counts_in_whatever_phase_the_signal_arrives(
    phase: int, saves: int, tmp_path: Path
) -> None:
    session = Session()
    writer = LedgerWriter(str(tmp_path), {"run": "r"}, {"start_ns": time.monotonic_ns(), "pid": os.getpid()})
    machine = session.machine = PhaseMachine(writer.words, time.monotonic_ns())
    machine.begin()
    before = signal.getsignal(signal.SIGTERM)

    def handler(number: int, frame: object) -> None:
        machine.leave_save(machine.enter_save(SaveMeter(session.task, session.threads)))
        raise SystemExit

    undo = watch_stop(session.stopped)
    try:
        signal.signal(signal.SIGTERM, handler)
        old = machine.enter_wait(phase) if phase >= LEAST_WAIT else machine.enter(phase)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        assert (machine.saves, machine.phase & ~CONTINUES) == (saves, phase)
        machine.leave(old)
        assert machine.phase == PHASE["compute"]
        assert writer.words[WORD_AT["faults"][0]] == 0
    finally:
        signal.signal(signal.SIGTERM, before)
        undo()
        writer.close()


# -- ranks of other nodes


class Store(dict[str, str]):
    """The parts of torch's store that are used."""

    def check(self, keys: list[str]) -> bool:
        return set(keys) <= self.keys()

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def get(self, key: str) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self[key].encode()


@pytest.mark.parametrize("said", ["3 9 0", "9 9 0", "3 0 0", "3 9 -1"])
def test_learns_from_another_node_what_was_restored(said: str) -> None:
    at = {name: WORD_AT[name][0] for name in ("beginning", "restored_step", "restored_attempt", "attempt")}
    knows, other = (memoryview(bytearray(HEAD_BYTES)).cast("q") for _ in range(2))
    store = Store()
    restored.tell(store, knows)
    assert not store, "there is nothing to tell"
    knows[at["beginning"]], knows[at["restored_step"]], knows[at["restored_attempt"]] = map(int, said.split())
    knows[at["attempt"]] = other[at["attempt"]] = 1
    restored.tell(store, knows)
    restored.learn(store, other)
    learnt = (other[at["beginning"]], other[at["restored_step"]], other[at["restored_attempt"]])
    assert learnt == ((3, 9, 0) if said == "3 9 0" else (0, 0, 0))
