"""A directory that the users of a node share: what one of them can do to the ranks of another, and what not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support_agent import agent
from support_ledgers import Spec, children, ended, sealed, until

from whyidle.agent.ledgers import LedgerStore
from whyidle.ledger.directory import MAX_LEDGERS, MAX_NAMES, read_directory, reap
from whyidle.ledger.layout import CHECKSUM_AT, STRING_AT, SUFFIX
from whyidle.ledger.reader import LedgerError, read_ledger
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks.identity import identify
from whyidle.torch_hooks.restart import FIRST, own_ledgers, restart_of

STEPPING = Spec(steps=20, step={"compute": 0.04})
STRANGER = 65532
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of several users")


def _mode(descriptor: int) -> int:
    return stat.S_IMODE(os.fstat(descriptor).st_mode)


def test_other_users_can_read_a_ledger_under_any_umask_once_it_is_locked(tmp_path: Path) -> None:
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


def test_another_user_cannot_make_a_dead_rank_look_alive(tmp_path: Path) -> None:
    [path] = ended(tmp_path, STEPPING)
    with open(path, "rb") as file:
        fcntl.lockf(file, fcntl.LOCK_SH)  # the only thing that a read-only descriptor allows
        code = "import sys; from whyidle.ledger.reader import read_ledger; print(read_ledger(sys.argv[1]).alive)"
        words = [sys.executable, "-c", code, path]
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"


@contextlib.contextmanager
def stranger() -> Iterator[None]:
    """Inside the block, access to files is that of another user, who is not root."""
    os.setegid(STRANGER)
    os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@needs_root
def test_another_user_can_neither_change_nor_remove_a_ledger(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as top, children(f"{top}/ledgers", STEPPING) as [child]:
        os.chmod(top, 0o755)
        other = Path(top, "ledgers", "other.ledger")
        with stranger():
            other.touch()  # it may have its own files there
            for attempt in (
                lambda: os.open(child.path, os.O_WRONLY),
                lambda: os.truncate(child.path, 0),
                lambda: os.chmod(child.path, 0o666),
                lambda: os.unlink(child.path),
                lambda: os.rename(child.path, f"{child.path}.gone"),
                lambda: os.rename(other, child.path),
                lambda: os.rmdir(f"{top}/ledgers"),
                lambda: os.rename(f"{top}/ledgers", f"{top}/gone"),
            ):
                with pytest.raises(PermissionError):
                    attempt()
            assert reap(f"{top}/ledgers", 0.0) == 0
        assert read_ledger(child.path).alive


@needs_root
def test_training_continues_unrecorded_when_the_directory_is_full() -> None:
    """In a separate mount namespace: a tmpfs without space for the pages of a ledger."""
    code = (
        "import os, sys\n"
        "from whyidle.ledger.writer import LedgerWriter\n"
        "try:\n    LedgerWriter('/mnt', {}, {})\n"
        "except OSError as error:\n    print(error.strerror, os.listdir('/mnt'))"
    )
    script = f'mount -t tmpfs -o size=64k full /mnt && exec {sys.executable} -c "$0"'
    words = ["unshare", "--mount", "sh", "-c", script, code]
    done = subprocess.run(words, capture_output=True, text=True)
    if "mount" in done.stderr:
        pytest.skip("needs the right to mount")
    assert done.stdout == "No space left on device []\n", done.stderr


@needs_root
def test_a_user_who_fills_the_directory_does_not_affect_others(tmp_path: Path) -> None:
    with children(tmp_path, STEPPING) as [child]:
        for number in range(2 * MAX_LEDGERS):
            path = tmp_path / f"{number}.ledger"
            path.touch()
            os.chown(path, STRANGER, STRANGER)
        ledgers, errors = read_directory(str(tmp_path))
        assert [ledger.path for ledger in ledgers] == [child.path]
        assert [error.reason for error in errors] == ["short"] * (MAX_LEDGERS - 1) + ["too_many"]


@needs_root
def test_ranks_that_were_seen_before_stay_however_many_files_somebody_makes() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as top, children(top, STEPPING):  # a tmpfs lists the newest first
        os.chmod(top, 0o1777)
        store = LedgerStore(top, 1e9)
        assert _steps(store) == [20]
        with stranger():
            for number in range(MAX_NAMES + 100):
                os.close(os.open(f"{top}/{number}{SUFFIX}", os.O_CREAT | os.O_WRONLY))
        assert not read_directory(top)[0]
        assert _steps(store) == _steps(store) == [20]


def test_removing_ended_ledgers_takes_little_memory_however_many_files_there_are(tmp_path: Path) -> None:
    for number in range(3 * 4 * MAX_LEDGERS):
        (tmp_path / f"{number}-{'x' * 200}").touch()
    listed = sum(map(sys.getsizeof, os.listdir(tmp_path)))
    tracemalloc.start()
    reap(str(tmp_path), 0.0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < listed / 2


NEVER_DONE = """
import fcntl, sys
kept = [open(path, "r+b") for path in sys.argv[1:]]
for file in kept:
    fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_ledgers_whose_updates_never_end_take_little_more_time_than_a_few(tmp_path: Path) -> None:
    [sound] = ended(tmp_path, STEPPING)
    raw = bytearray(Path(sound).read_bytes())
    raw[CHECKSUM_AT] ^= 1
    paths = [tmp_path / f"{number}.ledger" for number in range(200)]
    for path in paths:
        path.write_bytes(raw)
    words = [sys.executable, "-c", NEVER_DONE, *map(str, paths)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "locked\n"
        begun = time.monotonic()
        with pytest.raises(LedgerError, match="no consistent copy"):
            read_ledger(str(paths[0]))
        one = time.monotonic() - begun
        begun = time.monotonic()
        ledgers, problems = read_directory(str(tmp_path))
        every = time.monotonic() - begun
        holder.communicate()
    assert [ledger.path for ledger in ledgers] == [sound]
    assert [problem.reason for problem in problems] == ["torn"] * len(paths)
    assert every < one * len(paths) / 2


def test_reads_the_newest_of_too_many_ledgers_of_one_user(tmp_path: Path) -> None:
    for number in range(2 * MAX_LEDGERS):
        path = tmp_path / f"{number}.ledger"
        path.touch()
        os.utime(path, (1, 1))
    with children(tmp_path, STEPPING) as [child]:
        assert [ledger.path for ledger in read_directory(str(tmp_path))[0]] == [child.path]
        assert read_ledger(child.path).alive


def test_reads_a_live_ledger_before_newer_ones_of_ranks_that_have_ended(tmp_path: Path) -> None:
    """Nothing changes the time of a file in memory that is mapped: a long run seems to be old."""
    with children(tmp_path, STEPPING) as [child]:
        os.utime(child.path, (1, 1))
        for number in range(2 * MAX_LEDGERS):
            (tmp_path / f"{number}.ledger").touch()
        assert [ledger.path for ledger in read_directory(str(tmp_path))[0]] == [child.path]


def _steps(store: LedgerStore) -> list[int]:
    return [rank.totals["steps"][0] for rank in store.look().ranks]


@needs_root
def test_a_rank_belongs_to_its_user_even_if_another_user_claims_it(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), 1e9)
    with children(tmp_path, Spec(steps=20, created=200)):
        assert _steps(store) == [20]
        # One is alive and says that it is older, one is of a later attempt, and one has ended and would be added.
        forged = [Spec(steps=1, created=100), Spec(steps=2, attempt=5)]
        with children(tmp_path, *forged) as strangers:
            left = [*(stranger.path for stranger in strangers), *ended(tmp_path, Spec(steps=3, created=1))]
            for path in left:
                os.chown(path, STRANGER, STRANGER)
            assert _steps(store) == [20]
            assert store.look().errors["duplicate"] == 2
            assert {rank.newest.uid for rank in store.look().ranks} == {0}


@needs_root
def test_the_owner_in_a_ledger_is_believed_where_that_owner_has_no_such_rank(tmp_path: Path) -> None:
    """Nothing prevents this, as docs/security.md says."""
    [path] = ended(tmp_path, Spec(owner="somebody", run="theirs", rank=77, steps=5))
    os.chown(path, STRANGER, STRANGER)
    assert [rank.newest.owner for rank in LedgerStore(str(tmp_path), 1e9).look().ranks] == ["somebody"]


@needs_root
def test_counters_restart_when_another_user_reuses_a_run_name(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), 1e9)
    [old] = ended(tmp_path, Spec(steps=30))
    os.chown(old, STRANGER, STRANGER)
    assert _steps(store) == [30]
    with children(tmp_path, Spec(steps=7)):
        assert _steps(store) == [7]
        assert not any(store.look().errors.values())


@needs_root
def test_training_ignores_ledgers_of_other_users(tmp_path: Path) -> None:
    [path] = ended(tmp_path, Spec(run="r", steps=30, attempt=3))
    who = replace(identify({}), owner="lab", run="r", node="n1", rank=0, attempt=0, resumable=True)
    assert restart_of(own_ledgers(str(tmp_path)), who).attempt == 4
    os.chown(path, STRANGER, STRANGER)
    assert restart_of(own_ledgers(str(tmp_path)), who) == FIRST


UP = 'whyidle_collector_up{collector="ranks"} 1'


@pytest.mark.long
@needs_root
def test_a_thousand_valid_ledgers_of_one_user_do_not_hide_a_rank_of_another(tmp_path: Path) -> None:
    [path] = ended(tmp_path / "made", STEPPING)
    raw = bytearray(Path(path).read_bytes())
    directory = tmp_path / "ledgers"
    at, size = STRING_AT["run"]
    with children(directory, Spec(run="mine", steps=20)):
        for number in range(MAX_LEDGERS + 100):
            raw[at : at + size] = f"run-{number}".encode().ljust(size, b"\0")
            (directory / f"{number}.ledger").write_bytes(sealed(raw))
            os.chown(directory / f"{number}.ledger", STRANGER, STRANGER)
        with agent(directory) as running:  # with so many, this may exceed its deadline on busy cores
            page = until(lambda: page if UP in (page := running.get()[2].decode()) else "")
    assert 'whyidle_rank_up{owner="lab",run="mine",rank="0"} 1' in page
    assert len(re.findall("^whyidle_rank_up{", page, re.MULTILINE)) == MAX_LEDGERS
