"""The age of a killed rank counts from when it was found dead, however long it gave no sign of life before."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support_ledgers import DEADLINE_SECONDS, SECOND, Spec, children, ended, until
from test_ledger_sharing import STRANGER, needs_root, stranger

from whyidle.agent import service
from whyidle.agent.claim import Claim
from whyidle.agent.ledgers import LedgerStore
from whyidle.agent.log import Log
from whyidle.ledger.deaths import note_of
from whyidle.ledger.directory import is_tended, read_directory, reap
from whyidle.ledger.reader import read_ledger

pytestmark = pytest.mark.ages

DAY = 86400.0
HUNG = Spec(phase="collective", idle=2 * DAY)
"""It has no heartbeat: a thread holds Python's lock, or the process is stopped."""


def killed(folder: str | Path, *specs: Spec) -> list[str]:
    with children(folder, *specs) as ranks:
        for rank in ranks:
            rank.kill()
        return [rank.path for rank in ranks]


def train(folder: Path) -> None:
    """A training of three steps, which is recorded."""
    loop = "model = torch.nn.Linear(2, 2); optimizer = torch.optim.SGD(model.parameters())\n"
    loop += "for _ in range(3): model(torch.ones(2, 2)).sum().backward(); optimizer.step()"
    env = os.environ | {"WHYIDLE_DIR": str(folder)}
    subprocess.run([sys.executable, "-c", f"import torch, whyidle\nwhyidle.attach()\n{loop}"], env=env, check=True)
    assert any(read_ledger(str(path)).steps == 3 for path in folder.glob("*.ledger"))


def found_dead(path: str, seconds: float) -> None:
    """As if the rank had been found dead this many seconds ago."""
    at = time.time() - seconds
    os.utime(note_of(path), (at, at))


def test_the_ledger_of_a_hung_rank_is_kept_after_its_death(tmp_path: Path) -> None:
    [path] = killed(tmp_path, HUNG)
    for _ in range(3):
        assert reap(str(tmp_path), DAY) == 0
    assert read_ledger(path).ended_seconds < DEADLINE_SECONDS
    found_dead(path, DAY - DEADLINE_SECONDS)
    assert reap(str(tmp_path), DAY) == 0
    found_dead(path, DAY + 1)
    assert reap(str(tmp_path), DAY) == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.long
def test_ranks_leave_old_ledgers_to_an_agent_that_was_told_when_to_remove_them(tmp_path: Path) -> None:
    [old] = ended(tmp_path, Spec(idle=2 * DAY))
    agent = Claim(str(tmp_path), Log())
    agent.look()
    assert is_tended(str(tmp_path))
    train(tmp_path)
    assert os.path.exists(old)
    agent.close()
    assert not is_tended(str(tmp_path))
    assert not is_tended(str(tmp_path / "missing"))
    train(tmp_path)
    assert not os.path.exists(old)


def test_a_rank_that_ended_itself_needs_no_note(tmp_path: Path) -> None:
    [path] = ended(tmp_path, Spec(idle=2 * DAY))
    assert 2 * DAY <= read_ledger(path).ended_seconds < 2 * DAY + DEADLINE_SECONDS
    assert reap(str(tmp_path), DAY) == 1
    assert os.listdir(tmp_path) == []


def test_a_sign_of_life_after_the_note_counts(tmp_path: Path) -> None:
    """On a file system without locks, a live rank seems dead."""
    [path] = killed(tmp_path, Spec(idle=100.0))
    reap(str(tmp_path), DAY)
    found_dead(path, DAY)
    assert 100.0 <= read_ledger(path).ended_seconds < 100.0 + DEADLINE_SECONDS


def test_a_note_in_the_future_is_of_now(tmp_path: Path) -> None:
    [path] = killed(tmp_path, HUNG)
    reap(str(tmp_path), DAY)
    found_dead(path, -DAY)
    assert read_ledger(path).ended_seconds < DEADLINE_SECONDS


def test_notes_on_ledgers_that_are_gone_are_removed(tmp_path: Path) -> None:
    [path] = killed(tmp_path, HUNG)
    reap(str(tmp_path), DAY)
    os.unlink(path)
    assert reap(str(tmp_path), DAY) == 0
    assert os.listdir(tmp_path) == []


def test_a_note_that_nobody_can_parse_says_nothing(tmp_path: Path) -> None:
    """Any user may write one beside a ledger, and the agent reads the ledgers of all."""
    [path] = killed(tmp_path, HUNG)
    Path(note_of(path)).write_bytes(b"[" * 2048)
    assert [ledger.oom for ledger in read_directory(str(tmp_path))[0]] == [None]


def test_an_agent_goes_on_to_remove_ledgers_after_a_failure(tmp_path: Path) -> None:
    class Broken:
        directory = str(tmp_path)
        looks = 0

        def look(self) -> None:
            self.looks += 1
            raise RuntimeError("broken")

    ledgers, stopping = Broken(), threading.Event()
    words: Any = ledgers, 1.0, stopping, Log("error")
    thread = threading.Thread(target=service._tidy, args=words)
    thread.start()
    until(lambda: ledgers.looks > 1)
    stopping.set()
    thread.join()


def test_agents_find_the_same_end_one_after_the_other(tmp_path: Path) -> None:
    [path] = killed(tmp_path, HUNG)
    assert LedgerStore(str(tmp_path), 900.0).look().ranks
    found_dead(path, 800.0)
    assert LedgerStore(str(tmp_path), 900.0).look().ranks
    found_dead(path, 901.0)
    assert not LedgerStore(str(tmp_path), 900.0).look().ranks


@needs_root
def test_the_owner_of_the_directory_notes_deaths_of_all_users_and_believes_no_stranger() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as top:
        os.chmod(top, 0o1777)
        os.chown(top, STRANGER, STRANGER)
        [path] = killed(top, HUNG)
        Path(note_of(path)).touch()
        os.chown(note_of(path), 1234, 1234)
        found_dead(path, 10 * DAY)
        with stranger():
            assert LedgerStore(top, 900.0).look().ranks
        assert os.stat(note_of(path)).st_uid == STRANGER
        assert read_ledger(path).ended_seconds < DEADLINE_SECONDS


@needs_root
def test_an_agent_that_may_not_write_remembers_when_it_found_a_rank_dead() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as top:
        os.chmod(top, 0o755)
        [path] = killed(top, HUNG)
        with stranger():
            store = LedgerStore(top, 900.0)
            [rank] = store.look().ranks
            [again] = store.look().ranks
            assert again.newest.found_dead_ns == rank.newest.found_dead_ns
            assert time.monotonic_ns() - (again.newest.found_dead_ns or 0) < DEADLINE_SECONDS * SECOND
            assert reap(top, 0.0) == 0
        assert os.listdir(top) == [os.path.basename(path)]
