"""A fault of whyidle never affects the training, and a fault of the training never destroys the records of others."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_forks import Forks
from support_training import (
    agent,
    assert_every_second_is_in_one_place,
    environment,
    gather,
    ledgers_of,
    metrics,
    until,
)

from whyidle.ledger.directory import read_directory
from whyidle.ledger.reader import read_ledger

MID_WRITE = """
import os, signal, sys
from whyidle.ledger.layout import WORD_AT
from whyidle.ledger.writer import LedgerWriter
ledger = LedgerWriter(sys.argv[1], {"run": "r", "node": "n", "device": "cpu", "uuid": ""}, {"rank": 7})
ledger.words[WORD_AT["phase"][0]] += 1
pwrite = os.pwrite
def dies_in_the_middle(fd, what, at):
    pwrite(fd, what[:8192], at)
    os.kill(os.getpid(), signal.SIGKILL)
os.pwrite = dies_in_the_middle
ledger.file.flush()
"""

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it mounts a file system")


# -- ranks that die


def test_reads_a_rank_that_died_during_a_write(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", MID_WRITE, str(tmp_path)], env=environment(tmp_path), check=False, timeout=60)
    ledgers, errors = read_directory(str(tmp_path))
    assert [(one.rank, one.alive, one.died_mid_write) for one in ledgers] == [(7, False, True)]
    assert [error.reason for error in errors] == ["died_mid_write"]


def test_killing_one_of_two_runs_in_a_directory_leaves_the_other(tmp_path: Path, forks: Forks) -> None:
    """At a random moment, and together with the agent: the other run continues."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    words = ("faults.py", "until_told")
    shared = {"WHYIDLE_DIR": str(tmp_path / "ledgers")}

    def named(run_name: str) -> list[int]:
        ledgers, _ = read_directory(shared["WHYIDLE_DIR"])
        return [one.steps for one in ledgers if one.run == run_name]

    with (
        forks.training(words, mine, {"WHYIDLE_RUN": "mine", **shared}) as first,
        forks.training(words, other, {"WHYIDLE_RUN": "other", **shared}) as second,
    ):
        assert until(lambda: any(steps > 50 for steps in named("mine")) and any(steps > 50 for steps in named("other")))
        with agent(Path(shared["WHYIDLE_DIR"])) as (exporter, url):
            assert {at["run"] for at, up in metrics(url, "whyidle_rank_up") if up} == {"mine", "other"}
            time.sleep(random.random() / 10)
            first.kill()
            first.wait(60)
            assert until(lambda: ("mine", 0.0) in [(at["run"], up) for at, up in metrics(url, "whyidle_rank_up")])
            assert ("other", 1.0) in [(at["run"], up) for at, up in metrics(url, "whyidle_rank_up")]
            exporter.kill()
        (before,) = named("other")
        assert until(lambda: any(steps > before + 20 for steps in named("other"))), "no agent, and the training goes on"
        (other / "stop").touch()
        assert second.wait(60) == 0
    ledgers = {one.run: one for one in read_directory(shared["WHYIDLE_DIR"])[0]}
    assert (ledgers["mine"].alive, ledgers["mine"].ended) == (False, 0)
    assert (ledgers["other"].alive, ledgers["other"].ended, ledgers["other"].faults) == (False, 1, 0)
    (told,) = gather(other, 0).told
    assert_every_second_is_in_one_place(told, ledgers["other"])
    assert ledgers["other"].steps == told.counts["steps"]


def test_a_rank_that_exits_early_exits_at_once(tmp_path: Path, forks: Forks) -> None:
    """Its blocks of the exchange are in flight, and no rank will ever answer them."""
    plain, _ = forks.run(("early.py",), tmp_path / "plain", 2, recorded=False)
    outcome, codes = forks.run(("early.py",), tmp_path / "recorded", 2)
    assert (plain.returncode, codes) == (0, [0, 0]), (plain.stderr, outcome.stderr)
    told, ledger = outcome.rank(0)
    assert told.facts["left_in_time"]
    assert told.losses == next(one.losses for one in plain.told if one.rank == 0)
    assert ledger.steps == 40
    for rank in (0, 1):
        assert_every_second_is_in_one_place(*outcome.rank(rank))
        assert outcome.rank(rank)[1].ended == 1
    assert outcome.left_behind == []


def test_training_works_with_one_of_two_ranks_attached(tmp_path: Path, forks: Forks) -> None:
    words = ("ranks.py", "ddp", "by_hand", "objects")
    plain, _ = forks.run(words, tmp_path / "plain", 2, recorded=False)
    outcome, codes = forks.run(words, tmp_path / "half", 2, each={1: {"WHYIDLE": "0"}})
    assert codes == [0, 0], outcome.stderr
    assert {t.rank: t.losses for t in outcome.told} == {t.rank: t.losses for t in plain.told}
    (ledger,) = outcome.ledgers
    assert (ledger.rank, ledger.world_size, ledger.faults, ledger.pending_ns) == (0, 2, 0, 0)
    assert ledger.hook_states["exchange"] == "absent"
    assert (ledger.cause_ns["network"], ledger.cause_ns["straggler"]) == (0, 0)
    assert ledger.cause_ns["collective"] > 0
    # The handshake still runs when the process ends, which waits for it.
    assert_every_second_is_in_one_place(next(t for t in outcome.told if t.rank == 0), ledger)


# -- what happens inside a rank


def test_records_a_run_through_signals_errors_and_dead_workers(tmp_path: Path, forks: Forks) -> None:
    names = ("saves_in_a_signal_handler", "interrupted", "raises_in_backward", "a_worker_dies", "plain")
    outcome, _ = forks.run(("faults.py", *names), tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    told, ledger = outcome.rank(0)
    assert_every_second_is_in_one_place(told, ledger)
    assert ledger.steps == told.counts["steps"]
    assert (ledger.faults, set(ledger.hook_states.values())) == (0, {"absent", "active"})
    assert ledger.words["checkpoints"][0] > 0
    assert (told.counts["interrupted"], told.counts["raised"], told.counts["died"]) == (3, 3, 1)


def test_forked_children_touch_neither_ledger_nor_lock(tmp_path: Path, forks: Forks) -> None:
    with forks.training(("faults.py", "forks"), tmp_path) as process:

        def looks(steps: int) -> bool:
            ledgers = ledgers_of(tmp_path)
            return bool(ledgers) and ledgers[0].alive and ledgers[0].steps >= steps

        assert until(lambda: (tmp_path / "forked").exists(), 90)
        assert until(lambda: looks(3)), "alive while the children live"
        (tmp_path / "end-children").touch()
        assert until(lambda: (tmp_path / "alone").exists())
        assert until(lambda: looks(30)), "and when they have ended"
        (tmp_path / "stop").touch()
        assert process.wait(60) == 0
    outcome = gather(tmp_path, 0)
    (ledger,) = outcome.ledgers
    (told,) = outcome.told
    assert ledger.steps == told.counts["steps"]
    assert_every_second_is_in_one_place(told, ledger)


# -- directories


@contextlib.contextmanager
def mounted(at: Path, options: str) -> Iterator[Path]:
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)], check=True, timeout=60)
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True, timeout=60)


@AS_ROOT
def test_training_continues_without_room_for_a_ledger(tmp_path: Path, forks: Forks) -> None:
    plain, _ = forks.run(("faults.py", "plain"), tmp_path / "plain", recorded=False)
    with mounted(tmp_path / "full", "size=8k") as full:
        outcome, _ = forks.run(("faults.py", "plain"), tmp_path / "recorded", env={"WHYIDLE_DIR": str(full)})
        assert list(full.iterdir()) == []
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.told[0].losses == plain.told[0].losses
    said = [line for line in outcome.stderr.splitlines() if line.startswith("whyidle:")]
    assert len(said) == 1
    assert str(tmp_path / "full") in said[0]
    assert "No space left" in said[0]
    assert "WHYIDLE_DIR" in said[0]


@AS_ROOT
def test_training_continues_if_the_directory_is_not_writable(tmp_path: Path, forks: Forks) -> None:
    file, link, loop = tmp_path / "file", tmp_path / "dangling", tmp_path / "loop"
    file.touch()
    link.symlink_to(tmp_path / "nowhere" / "at-all")
    loop.symlink_to(loop)
    with mounted(tmp_path / "read-only", "ro") as read_only, mounted(tmp_path / "full", "size=8k") as full:
        bad = [file, file / "below", link, loop, read_only, read_only / "below", full]
        words, env = ("contract.py", "no_ledger_can_be_made"), {"BAD_DIRS": ":".join(map(str, bad))}
        done, _ = forks.run(words, tmp_path / "out", env=env, recorded=False)
    assert done.stdout == "kept\n", done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("whyidle:")]
    assert [directory for directory in bad if not any(f"{directory} (" in line for line in said)] == []
    assert len(said) == 2 * len(bad), "one line for each call of attach()"


def test_records_a_run_beside_sixty_four_stale_ledgers(tmp_path: Path, forks: Forks) -> None:
    forks.run(("faults.py", "plain"), tmp_path / "first", env={"WHYIDLE_DIR": str(tmp_path / "ledgers")})
    (stale,) = (tmp_path / "ledgers").iterdir()
    for number in range(63):
        shutil.copyfile(stale, stale.with_name(f"0-{number}-stale.ledger"))
    (tmp_path / "ledgers" / "cut.ledger").write_bytes(stale.read_bytes()[:1000])
    outcome, _ = forks.run(("faults.py", "plain"), tmp_path / "next", env={"WHYIDLE_DIR": str(tmp_path / "ledgers")})
    assert outcome.returncode == 0
    ledgers, errors = read_directory(str(tmp_path / "ledgers"))
    (ledger,) = (one for one in ledgers if one.pid == outcome.told[0].pid)
    assert (len(ledgers), [error.reason for error in errors]) == (65, ["short"])
    assert_every_second_is_in_one_place(outcome.told[0], ledger)
    assert ledger.steps == 10
    assert read_ledger(str(stale)).steps == 10


# -- the contract of attach and detach


@pytest.mark.parametrize(
    ("promise", "env"),
    [
        ("detach_restores_every_original", {}),
        ("nothing_is_touched", {"WHYIDLE": "0"}),
        ("no_tensor_is_held", {}),
        ("what_fails_inside_is_off", {}),
        ("a_thread_of_the_program_takes_no_slot", {}),
        ("a_thread_that_fetches_batches_is_not_the_training", {}),
        ("a_process_that_a_rank_starts_is_a_rank_if_it_trains", {}),
        ("no_second_is_in_two_ledgers_of_one_process", {}),
    ],
)
def test_the_contract(promise: str, env: dict[str, str], tmp_path: Path, forks: Forks) -> None:
    done, _ = forks.run(("contract.py", promise), tmp_path, env=env, recorded=False)
    assert done.stdout == "kept\n", done.stderr


def test_it_is_killed_by_the_signal_that_it_got(tmp_path: Path, forks: Forks) -> None:
    with forks.training(("faults.py", "until_told"), tmp_path) as process:
        assert until(lambda: (tmp_path / "runs").exists(), 90)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    (ledger,) = ledgers_of(tmp_path).values()
    assert not ledger.alive
