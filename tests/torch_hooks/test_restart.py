"""A run that restarts repeats what it had not saved. These steps, and no others, are `recompute`."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support_forks import Forked, Forks
from support_ledgers import Spec, ended
from support_training import Outcome, assert_every_second_is_in_one_place, command, recorded, run, until

from whyidle.ledger.causes import CAUSE
from whyidle.ledger.directory import read_directory
from whyidle.ledger.reader import Ledger
from whyidle.torch_hooks.identity import identify
from whyidle.torch_hooks.restart import name_of, own_ledgers, restart_of

STEPS = 24
LACKS = 8
"""How many steps of a rank may be missing from its file if it is killed: those of 0.3 s, and longer on busy cores."""

TWICE = """
import pathlib, sys
import torch
saved = pathlib.Path(__file__).with_suffix(".pt")
net = torch.nn.Linear(8, 1)
if saved.exists() and int(sys.argv[1]):
    net.load_state_dict(torch.load(saved))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(1, 7):
    net(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if step == 4 and not saved.exists():
        torch.save(net.state_dict(), saved)
"""


@dataclass(frozen=True)
class Case:
    kill_at: int
    save_at: int  # 0: never
    how: str

    @property
    def repeated(self) -> int:
        return self.kill_at - self.save_at


Launch = Callable[[Case, Path, Forks], Outcome]


def repeated_steps(ledger: Ledger, *expected: int) -> list[int]:
    """The numbers of the steps with time in `recompute`. On busy cores, a step may only have queued for a CPU, which is
    the same cause for both: it counts as ``expected``."""
    return [
        step.number
        for step in ledger.ring
        if step.causes[CAUSE["recompute"]] or (not step.causes[CAUSE["compute"]] and step.number in expected)
    ]


def attempts(folder: Path, rank: int = 0) -> list[Ledger]:
    ledgers, _ = read_directory(str(folder / "ledgers"), steps=True)
    return sorted((one for one in ledgers if one.rank == rank), key=lambda one: one.attempt)


def test_a_run_of_another_owner_is_not_an_earlier_attempt(tmp_path: Path) -> None:
    ended(tmp_path, Spec(run="llama", owner="team-a", steps=30, attempt=3))
    who = replace(identify({}), owner="team-a", run="llama", node="n1", rank=0, attempt=0, resumable=True)
    assert restart_of(own_ledgers(str(tmp_path)), who)[:4] == (4, 30, -1, True)
    assert restart_of(own_ledgers(str(tmp_path)), replace(who, owner="team-b"))[:4] == (0, 0, -1, False)


@pytest.mark.parametrize(
    ("before", "attempt", "finished"),
    [
        ([Spec(run="llama", steps=30), Spec(run="llama", rank=1, steps=30)], 0, True),
        ([Spec(run="llama", steps=30), Spec(run="llama", rank=1, steps=30, failed=True)], 0, False),
        ([Spec(run="llama", steps=30, failed=True), Spec(run="llama", steps=30, attempt=1)], 0, True),
        ([Spec(run="llama", steps=30)], 1, False),
    ],
    ids=["all ranks ended", "one failed", "restarted and ended", "the launcher counts a restart"],
)
def test_a_training_after_a_finished_one_is_not_a_restart(
    before: list[Spec], attempt: int, finished: bool, tmp_path: Path
) -> None:
    ended(tmp_path, *before)
    who = replace(identify({}), owner="lab", run="llama", node="n1", rank=0, attempt=attempt, resumable=True)
    assert restart_of(own_ledgers(str(tmp_path)), who).finished == finished


@pytest.mark.parametrize("restored", [False, True])
def test_repeats_steps_after_a_finished_training_only_if_it_restores(
    restored: bool, tmp_path: Path, forks: Forks
) -> None:
    """A script that trains several models, one after the other, under one name."""
    (tmp_path / "train.py").write_text(TWICE)
    for _ in range(2):
        training = forks.start((str(tmp_path / "train.py"), str(int(restored))), tmp_path, {"WHYIDLE_RUN": "sweep"})
        assert training.wait() == 0, (tmp_path / "stderr").read_text()
    before, after = attempts(tmp_path)
    assert (before.run, after.run, after.attempt, before.steps) == ("sweep", "sweep", 1, 6)
    expected = (4, [5, 6]) if restored else (0, [])
    assert (after.base_step, repeated_steps(after, *expected[1])) == expected


PORT = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "12355"}
FIRST = Spec(run="localhost-12355", steps=30, idle=60.0)
SECOND = replace(FIRST, run="localhost-12355-2")


@pytest.mark.parametrize(
    ("before", "changed", "expected"),
    [
        ([], {}, "localhost-12355"),
        ([FIRST], {}, "localhost-12355-2"),
        ([FIRST, replace(SECOND, rank=1)], {}, "localhost-12355-3"),
        ([replace(SECOND, rank=1)], {}, "localhost-12355-3"),
        ([FIRST, replace(FIRST, rank=1, failed=True)], {}, "localhost-12355"),
        ([FIRST, replace(SECOND, failed=True)], {}, "localhost-12355-2"),
        ([replace(FIRST, failed=True), replace(FIRST, attempt=1)], {}, "localhost-12355-2"),
        ([FIRST, SECOND], {"attempt": 1}, "localhost-12355-2"),
        ([replace(FIRST, idle=0.0)], {}, "localhost-12355"),
        ([FIRST], {"node": "n2"}, "localhost-12355"),
        ([FIRST], {"owner": "team-b"}, "localhost-12355"),
        ([replace(FIRST, run="localhost-12355-x"), replace(FIRST, run="localhost-123")], {}, "localhost-12355"),
        ([replace(FIRST, run="n0-12355")], {"run": "n0-12355", "by_port": False}, "n0-12355"),
    ],
    ids=[
        "the first",
        "the second",
        "the third",
        "the first is gone",
        "after a failure",
        "after a failed second",
        "after a restart that ended well",
        "restarted by its launcher",
        "a rank that has ended at once",
        "another node",
        "another owner",
        "other names",
        "several nodes",
    ],
)
def test_trainings_after_each_other_on_one_port_have_different_names(
    before: list[Spec], changed: dict[str, object], expected: str, tmp_path: Path
) -> None:
    ended(tmp_path, *before)
    who = replace(identify(PORT), owner="lab", node="n1", start_ns=time.monotonic_ns() - 10 * 10**9)
    assert (who.run, who.by_port) == ("localhost-12355", True)
    assert name_of(own_ledgers(str(tmp_path)), replace(who, **changed)) == expected  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "env", [{**PORT, "MASTER_ADDR": "n0"}, {**PORT, "WHYIDLE_RUN": "mine"}, {**PORT, "SLURM_JOB_ID": "7"}, {}]
)
def test_only_a_port_of_this_machine_makes_an_uncertain_name(env: dict[str, str]) -> None:
    assert not identify(env).by_port


def arguments(case: Case) -> tuple[str, ...]:
    return "restarts.py", str(STEPS), str(case.kill_at), str(case.save_at), case.how


def launched(case: Case, folder: Path, forks: Forks) -> Outcome:
    """By torchrun, which starts the ranks again when one has died."""
    options = ("--max-restarts=1", "--monitor-interval=0.1")
    outcome = run(recorded(command(*arguments(case), ranks=2, options=options)), folder)
    assert outcome.returncode == 0, outcome.stderr
    return outcome


def launched_by_hand(case: Case, folder: Path, forks: Forks) -> Outcome:
    """As torchrun does: when one rank has died it ends the other, and starts both with the next number."""

    def end_both(ranks: list[Forked]) -> None:
        assert ranks[1].wait()
        ranks[0].send_signal(signal.SIGTERM)

    env = {"TORCHELASTIC_RUN_ID": "by-hand", "WHYIDLE_RUN": ""}
    forks.run(arguments(case), folder, 2, env | {"TORCHELASTIC_RESTART_COUNT": "0"}, meanwhile=end_both)
    outcome, codes = forks.run(arguments(case), folder, 2, env | {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert codes == [0, 0], outcome.stderr
    return outcome


@pytest.mark.parametrize(
    ("case", "launch"),
    [
        pytest.param(Case(15, 10, "kill"), launched, id="killed after a checkpoint, torchrun", marks=pytest.mark.long),
        pytest.param(Case(15, 10, "kill"), launched_by_hand, id="killed after a checkpoint"),
        pytest.param(Case(6, 0, "exit"), launched_by_hand, id="left without a word, and without a checkpoint"),
    ],
)
def test_restarted_ranks_repeat_what_was_not_saved(case: Case, launch: Launch, tmp_path: Path, forks: Forks) -> None:
    outcome = launch(case, tmp_path, forks)
    for rank in (0, 1):
        before, after = attempts(tmp_path, rank)
        assert (before.attempt, after.attempt) == (0, 1)
        assert before.run == after.run
        assert not repeated_steps(before)
        # Rank 1 ended first. Rank 0 may have been one step behind, or waiting in the next one. The file may lack more.
        reached = max(one.base_step + one.steps for one in (before, attempts(tmp_path, 1 - rank)[0]))
        assert case.kill_at - LACKS <= reached <= case.kill_at
        if attempts(tmp_path)[0].steps <= case.save_at:
            continue  # the file of rank 0, which saves, may lack the save, too
        assert after.base_step == case.save_at
        repeated = list(range(case.save_at + 1, reached + 1))
        assert repeated_steps(after, *repeated) == repeated
        assert [step.number for step in after.ring] == list(range(case.save_at + 1, STEPS + 1))
        for step in after.ring[reached - case.save_at :]:
            assert step.causes[CAUSE["compute"]] + step.causes[CAUSE["compute_queue"]]  # of steps without a CPU
    for told in outcome.told:
        (ledger,) = (one for one in outcome.ledgers if one.pid == told.pid)
        if ledger.ended:  # the file of a killed rank may lack its last moments
            assert_every_second_is_in_one_place(told, ledger)
        assert told.facts["from"] == (case.save_at if ledger.attempt else 0)


def once(forks: Forks, folder: Path, case: Case, **env: str) -> None:
    forks.run(arguments(case), folder, env=env)


def test_steps_repeated_by_a_run_of_the_same_name_are_recompute(tmp_path: Path, forks: Forks) -> None:
    case = Case(9, 4, "kill")
    for _ in range(2):
        once(forks, tmp_path, case, WHYIDLE_RUN="mine")
    before, after = attempts(tmp_path)
    assert (before.run, after.run, after.attempt) == ("mine", "mine", 1)
    assert before.ended == 0
    assert case.kill_at - LACKS <= before.steps <= case.kill_at
    repeated = list(range(5, before.steps + 1))
    assert repeated_steps(after, *repeated) == repeated


def test_two_trainings_in_one_allocation_are_not_a_restart(tmp_path: Path, forks: Forks) -> None:
    """The scheduler's job id is the run of both, and it counts no restart."""
    case = Case(9, 0, "kill")
    for _ in range(2):
        once(forks, tmp_path, case, SLURM_JOB_ID="77")
    before, after = attempts(tmp_path)
    assert (before.run, after.run) == ("77", "77")
    assert (before.attempt, after.attempt) == (0, 1)
    assert not repeated_steps(after)
    assert after.base_step == 0


def test_steps_repeated_by_a_requeued_job_are_recompute(tmp_path: Path, forks: Forks) -> None:
    case = Case(9, 4, "exit")
    once(forks, tmp_path, case, SLURM_JOB_ID="78")
    once(forks, tmp_path, case, SLURM_JOB_ID="78", SLURM_RESTART_COUNT="1")
    before, after = attempts(tmp_path)
    assert case.kill_at - LACKS <= before.steps <= case.kill_at
    repeated = list(range(5, before.steps + 1))
    assert repeated_steps(after, *repeated) == repeated


BESIDE = """
import pathlib, sys, time
import torch
name, folder = sys.argv[1], pathlib.Path(__file__).parent
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
steps = 0
while steps < 6 or not (folder / "over").exists():
    net(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    steps += 1
    if steps == 6:
        (folder / f"{name}.trains").touch()
    time.sleep(0.005)
"""


def test_trainings_that_run_beside_each_other_in_one_allocation_are_separate_runs(tmp_path: Path, forks: Forks) -> None:
    """For example a search for hyperparameters with one training per GPU: they all have the scheduler's id."""
    script, ledgers = tmp_path / "search.py", tmp_path / "ledgers"
    script.write_text(BESIDE)
    slurm = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "WHYIDLE_DIR": str(ledgers)}
    started: dict[str, Forked] = {}
    try:
        for name in ("first", "second", "third"):
            started[name] = forks.start((str(script), name), tmp_path / name, slurm)
            if name == "first":
                assert until((tmp_path / "first.trains").exists)
        assert until(lambda: all((tmp_path / f"{name}.trains").exists() for name in ("second", "third")))
        time.sleep(0.3)  # a thread writes the ledger each 100 ms
        found, problems = read_directory(str(ledgers))
        assert not problems
        assert {ledger.run for ledger in found} == {"77", *(f"77-{started[name].pid}" for name in ("second", "third"))}
        assert all(ledger.alive and ledger.attempt == 0 and ledger.faults == 0 for ledger in found)
        (tmp_path / "over").touch()
        assert [process.wait() for process in started.values()] == [0, 0, 0]
        assert [(tmp_path / name / "stderr").read_text() for name in started] == ["", "", ""]
    finally:
        for process in started.values():
            process.kill()
