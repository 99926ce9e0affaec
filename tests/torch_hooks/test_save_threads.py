"""Threads that compute while a save is open: which of them the loop waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whyidle.ledger.causes import CAUSE
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks.hooks.host import install_threads
from whyidle.torch_hooks.machine import PhaseMachine
from whyidle.torch_hooks.meters.save import SaveMeter
from whyidle.torch_hooks.session import Session
from whyidle.torch_hooks.splits import shares

MS = 1_000_000
_clock = threading.local()


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """The caller is the training thread, and has no CPU time."""
    monkeypatch.setattr(time, "thread_time_ns", lambda: getattr(_clock, "ns", 0))
    session = Session()
    writer = LedgerWriter(str(tmp_path), {"run": "r", "node": "n", "device": "cpu", "uuid": ""}, {"rank": 0})
    session.machine = PhaseMachine(writer.words, 0)
    session.machine.begin()
    undo = install_threads(session)
    yield session
    undo()
    writer.close()


def works(ms: int) -> None:
    _clock.ns = ms * MS


def runs(*parts: int) -> None:
    """Threads, with the ms for which each is on a CPU."""
    threads = [threading.Thread(target=works, args=(ms,)) for ms in parts]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


def computed(session: Session, saves: Callable[[], object]) -> float:
    """How many ms of a save of 100 ms count as CPU time."""
    meter = SaveMeter(None, session.threads)
    meter.begin()
    saves()
    parts = meter.split(100 * MS)
    assert parts is not None
    return 100 * dict(shares(parts, 100 * MS)).get(CAUSE["checkpoint_cpu"], 0.0)


def test_a_save_waits_for_a_thread_that_pickles(session: Session) -> None:
    assert computed(session, lambda: runs(60)) == pytest.approx(60)
    assert computed(session, lambda: None) == 0


def test_threads_that_run_at_the_same_time_hide_no_slow_disk(session: Session) -> None:
    assert computed(session, lambda: runs(*[10] * 8)) == pytest.approx(10)


def test_a_save_does_not_wait_for_what_another_thread_has_started(session: Session) -> None:
    """A prefetcher loads batches with a new thread for each."""
    begin, done = threading.Event(), threading.Event()

    def prefetch() -> None:
        begin.wait(60)
        runs(300)
        done.set()

    other = threading.Thread(target=prefetch)
    other.start()
    assert computed(session, lambda: (begin.set(), done.wait(60))) == 0
    other.join()


def test_threads_outside_saves_are_not_kept(session: Session) -> None:
    runs(300)
    assert session.threads.helped is None
    assert computed(session, lambda: runs(*[10] * 200)) == pytest.approx(10)
    runs(300)
    assert session.threads.helped is None
    before = threading.Thread(target=lambda: (time.sleep(0.05), works(300)))
    before.start()
    assert computed(session, before.join) == 0
