"""A directory that the users of a node share: what one of them can do to the ranks of another, and what not."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support_ledgers import Spec, children, ended

from whyidle.agent.ledgers import LedgerStore
from whyidle.torch_hooks.identity import identify
from whyidle.torch_hooks.ledger import MAX_LEDGERS, LedgerWriter, read_all, read_ledger
from whyidle.torch_hooks.restart import restart_of

STEPPING = Spec(steps=20, step={"compute": 0.04})
STRANGER = 65532
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of several users")


def _mode(descriptor: int) -> int:
    return stat.S_IMODE(os.fstat(descriptor).st_mode)


def test_a_ledger_can_be_read_by_others_whatever_the_umask_but_not_before_it_is_locked(tmp_path: Path) -> None:
    class Watched(LedgerWriter):
        def _lock(self) -> bool:
            self.before = _mode(self._fd)
            return super()._lock()

    old = os.umask(0o077)
    try:
        writer = Watched(str(tmp_path / "ledgers"), {"run": "r"}, {"pid": os.getpid()})
    finally:
        os.umask(old)
    assert writer.before == 0o600
    assert writer.locked
    assert stat.S_IMODE(os.stat(writer.path).st_mode) == 0o644
    assert stat.S_IMODE(os.stat(tmp_path / "ledgers").st_mode) == 0o1777
    writer.close()


def test_a_stranger_cannot_make_a_dead_rank_seem_to_live(tmp_path: Path) -> None:
    [path] = ended(tmp_path, STEPPING)
    with open(path, "rb") as file:
        fcntl.lockf(file, fcntl.LOCK_SH)  # all that a descriptor for reading allows
        code = "import sys; from whyidle.torch_hooks.ledger import read_ledger; print(read_ledger(sys.argv[1]).alive)"
        words = [sys.executable, "-c", code, path]
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"


@needs_root
def test_who_fills_the_directory_is_in_nobody_elses_way(tmp_path: Path) -> None:
    with children(tmp_path, STEPPING) as [child]:
        for number in range(2 * MAX_LEDGERS):
            path = tmp_path / f"{number}.ledger"
            path.touch()
            os.chown(path, STRANGER, STRANGER)
        ledgers, errors = read_all(str(tmp_path))
        assert [ledger.path for ledger in ledgers] == [child.path]
        assert [error.reason for error in errors] == ["short"] * (MAX_LEDGERS - 1) + ["too_many"]


def test_of_too_many_ledgers_of_one_user_the_newest_are_read(tmp_path: Path) -> None:
    for number in range(2 * MAX_LEDGERS):
        path = tmp_path / f"{number}.ledger"
        path.touch()
        os.utime(path, (1, 1))
    with children(tmp_path, STEPPING) as [child]:
        assert [ledger.path for ledger in read_all(str(tmp_path))[0]] == [child.path]
        assert read_ledger(child.path).alive


def _steps(store: LedgerStore) -> list[int]:
    return [rank.totals["steps"][0] for rank in store.look().ranks]


@needs_root
def test_a_rank_stays_with_its_user_whatever_another_claims(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), 1e9)
    with children(tmp_path, Spec(steps=20, created=200)):
        assert _steps(store) == [20]
        # One that lives and says it is older, one of a later attempt, and one that has ended and would be added.
        forged = [Spec(steps=1, created=100), Spec(steps=2, attempt=5)]
        with children(tmp_path, *forged) as strangers:
            left = [*(stranger.path for stranger in strangers), *ended(tmp_path, Spec(steps=3, created=1))]
            for path in left:
                os.chown(path, STRANGER, STRANGER)
            assert _steps(store) == [20]
            assert store.look().errors["duplicate"] == 2
            assert {rank.newest.uid for rank in store.look().ranks} == {0}


@needs_root
def test_a_name_that_another_user_had_before_begins_anew(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), 1e9)
    [old] = ended(tmp_path, Spec(steps=30))
    os.chown(old, STRANGER, STRANGER)
    assert _steps(store) == [30]
    with children(tmp_path, Spec(steps=7)):
        assert _steps(store) == [7]
        assert not any(store.look().errors.values())


@needs_root
def test_a_training_believes_no_other_users_ledgers(tmp_path: Path) -> None:
    [path] = ended(tmp_path, Spec(run="r", steps=30, attempt=3))
    who = replace(identify({}), run="r", node="n1", rank=0, attempt=0, resumable=True)
    assert restart_of(str(tmp_path), who).attempt == 4
    os.chown(path, STRANGER, STRANGER)
    assert restart_of(str(tmp_path), who) == (0, 0, -1)
