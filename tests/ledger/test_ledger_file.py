"""The file of a ledger: it follows the memory, is complete at any time, and cannot end a training, whatever happens to
it."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_forks import Forks

from whyidle.ledger.causes import PHASE
from whyidle.ledger.layout import CHECKSUM_AT, LEDGER_BYTES, RING_CALLS, RING_STEPS, SEQUENCE, WORD_AT, checksum
from whyidle.ledger.reader import Ledger, LedgerError, read_ledger
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks.books import Books
from whyidle.torch_hooks.flusher import flush_probe
from whyidle.torch_hooks.machine import PhaseMachine
from whyidle.torch_hooks.wait_codes import wait_code
from whyidle.torch_hooks.watcher import Watcher

DEADLINE_SECONDS = 240.0


def new_writer(directory: Path) -> LedgerWriter:
    return LedgerWriter(str(directory), {"run": "r", "node": "n", "device": "cpu", "uuid": ""}, {"rank": 0})


def same(writer: LedgerWriter) -> bool:
    """Whether the file equals the memory, apart from the words that only the file has, which say so."""
    file, memory = (
        memoryview(bytearray(raw)).cast("q") for raw in (Path(writer.path).read_bytes(), bytes(writer.words))
    )
    assert file[CHECKSUM_AT // 8] == checksum(file.cast("B"))
    for counter in ("steps", "calls"):
        (at, _), (of, _) = WORD_AT[f"{counter}_begun"], WORD_AT["calls_written" if counter == "calls" else counter]
        assert file[at] == file[of]
        file[at] = 0
    file[CHECKSUM_AT // 8] = 0
    return file == memory


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2, RING_STEPS - 1, RING_STEPS, RING_STEPS + 1, 3 * RING_STEPS]),
            st.sampled_from([0, 1, 3, 20]),
            st.sampled_from(["flush", "flush", "cut", "refuse"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_after_a_flush_the_file_equals_the_memory(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[int, int, str]]
) -> None:
    """For any number of steps and waits between two flushes, and whatever has happened to the file."""
    writer = new_writer(tmp_path_factory.mktemp("ledgers"))
    books, now = Books(writer.words), 1
    books.hold(0, (), whole=True)
    books.open_window(now)
    for steps, waits, what in rounds:
        for _ in range(steps):
            for _ in range(waits):
                books.charge_wait(wait_code(0), 1000, 0, now, ())
            now += 10_000
            books.close_step(now)
        books.sort()
        if what == "refuse":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "pwrite", _refuses)
                writer.file.flush()
        elif what == "cut":
            os.truncate(writer.path, 100)
        writer.file.flush()
        assert same(writer)
    assert writer.words[WORD_AT["calls_written"][0]] == sum(steps * waits for steps, waits, _ in rounds)
    assert RING_CALLS > RING_STEPS
    writer.close()


def _refuses(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_unfinished_update_is_not_flushed(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    before = Path(writer.path).read_bytes()
    writer.words[SEQUENCE] += 1
    writer.set("steps", 7)
    writer.file.flush()
    assert Path(writer.path).read_bytes() == before
    writer.words[SEQUENCE] += 1
    writer.file.flush()
    assert same(writer)
    writer.close()


def test_a_file_truncated_during_a_flush_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other thread sees the short file, but cannot write at that time: the next flush must do it."""
    writer = new_writer(tmp_path)
    books = Books(writer.words)
    books.open_window(0)
    for step in range(1, 100):
        books.close_step(10_000 * step)
    writer.file.flush()
    books.close_step(10_000_000)
    real = os.pwrite

    def truncated(*words: Any) -> int:
        monkeypatch.undo()
        os.truncate(writer.path, 100)
        writer.file.flush()
        return real(*words)

    monkeypatch.setattr(os, "pwrite", truncated)
    writer.file.flush()
    writer.file.flush()
    assert same(writer)
    writer.close()


def test_the_next_flush_repairs_an_interrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example by Ctrl-C between two of its writes."""
    writer = new_writer(tmp_path)
    writer.set("steps", 7)

    def interrupted(*words: object) -> int:
        monkeypatch.undo()
        os.pwrite(*words)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "pwrite", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.file.flush()
    writer.file.flush()
    assert same(writer)
    writer.close()


def test_a_program_that_ends_itself_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = new_writer(tmp_path)
    writer.set("steps", 7)
    writer.file.flush_within(60.0)
    assert same(writer)
    answers, ended, write = threading.Event(), threading.Event(), os.pwrite

    def late(*words: Any) -> int:
        answers.wait()
        try:
            return write(*words)
        finally:
            ended.set()

    monkeypatch.setattr(os, "pwrite", late)
    writer.set("steps", 8)
    writer.file.flush_within(0.01)
    assert not ended.is_set()
    answers.set()
    assert ended.wait(60.0)
    writer.close()
    assert read_ledger(writer.path).steps == 8


def test_a_forked_child_does_not_write_the_file(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    before = Path(writer.path).read_bytes()
    pid = os.fork()
    if not pid:
        writer.set("steps", 7)
        writer.file.flush()
        writer.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert Path(writer.path).read_bytes() == before
    writer.close()


def test_an_open_phase_is_visible_in_the_file(tmp_path: Path) -> None:
    """There is no boundary that could flush, so the thread does."""
    writer = new_writer(tmp_path)
    machine = PhaseMachine(writer.words, time.monotonic_ns(), writer.file.flush)
    watcher = Watcher([flush_probe(writer)], "whyidle-watcher")
    for phase in ("host", "data"):  # the second is too soon after the first to be flushed at once
        machine.enter(PHASE[phase])
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not same(writer) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert same(writer)
    watcher.stop()
    writer.close()


@pytest.mark.parametrize("size", [0, 100, LEDGER_BYTES - 8])
def test_training_survives_a_truncated_ledger(tmp_path: Path, forks: Forks, size: int) -> None:
    """Truncated by root, or by another process of the same user. With stores through a mapping this was a SIGBUS."""
    with forks.training(("faults.py", "until_told"), tmp_path) as training:
        path = _steps_beyond(tmp_path, 0).path
        for _ in range(3):
            os.truncate(path, size)
            before = _steps_beyond(tmp_path, 0).steps
            _steps_beyond(tmp_path, before)
        (tmp_path / "stop").touch()
        assert training.wait() == 0
    ledger = read_ledger(path, steps=True)
    assert ledger.ended
    assert len(ledger.ring) == (ledger.steps if ledger.steps <= RING_STEPS else RING_STEPS - 1)
    assert all(step.wall_ns > 0 for step in ledger.ring)


def _steps_beyond(folder: Path, steps: int) -> Ledger:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        for path in (folder / "ledgers").glob("*.ledger"):
            try:
                ledger = read_ledger(str(path))
            except LedgerError:
                continue
            if ledger.steps > steps:
                return ledger
        time.sleep(0.01)
    raise TimeoutError(f"no ledger has more than {steps} steps")
