"""Which thread the training thread waits for."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import whyidle
from whyidle.ledger.below import STATES
from whyidle.ledger.reader import read_ledger
from whyidle.torch_hooks.awaited import awaited_by

PATIENCE = 20.0


class Work:
    """Goes on until it is told to end."""

    def __init__(self) -> None:
        self.begun, self.end = threading.Semaphore(0), threading.Event()
        self.idents: list[int] = []

    def save_snapshot(self) -> None:
        self.idents.append(threading.get_ident())
        self.begun.release()
        self.end.wait(PATIENCE)


@pytest.fixture
def work() -> Iterator[Work]:
    found = Work()
    yield found
    found.end.set()


@contextlib.contextmanager
def waiting(wait: Callable[[], object]) -> Iterator[int]:
    """A thread that waits."""
    thread = threading.Thread(target=wait)
    thread.start()
    ident, deadline = thread.ident or 0, time.monotonic() + PATIENCE
    while not {"join", "result"} & names_of(ident) and time.monotonic() < deadline:
        time.sleep(0.001)
    yield ident


def names_of(ident: int) -> set[str]:
    frame, names = sys._current_frames().get(ident), set[str]()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


def awaited(wait: Callable[[], object]) -> int | None:
    with waiting(wait) as ident:
        found = awaited_by(sys._current_frames()[ident])
    return found.ident if found is not None else None


def test_a_thread_that_is_joined_is_awaited(work: Work) -> None:
    thread = threading.Thread(target=work.save_snapshot)
    thread.start()
    work.begun.acquire()
    assert awaited(thread.join) == thread.ident
    assert awaited_by(sys._getframe()) is None
    assert awaited_by(sys._current_frames()[thread.ident or 0]) is None, "it waits for an event"


def test_of_a_pool_the_thread_is_awaited_that_makes_the_result(work: Work) -> None:
    other, strange = Work(), Future[None]()
    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(each.save_snapshot) for each in (other, work)]
        for each in (other, work):
            each.begun.acquire()
        assert awaited(futures[1].result) == work.idents[0]
        assert awaited(strange.result) is None, "no thread of a pool makes it"
        for each in (other, work):
            each.end.set()
        strange.set_result(None)


@pytest.mark.parametrize("fails", [False, True])
def test_no_variable_of_another_thread_is_kept(fails: bool) -> None:
    class Tensors:
        pass

    begun, end, kept = threading.Event(), threading.Event(), list[weakref.ref[Tensors]]()

    def save_snapshot() -> None:
        tensors = Tensors()
        kept.append(weakref.ref(tensors))
        begun.set()
        end.wait(PATIENCE)
        if fails:
            raise OSError("the disk is full")

    def wait() -> None:
        with contextlib.suppress(OSError):
            futures.pop().result()  # an error has the frames that its future has passed, so nobody keeps that

    gc.disable()
    try:
        with ThreadPoolExecutor() as pool:
            futures = [pool.submit(save_snapshot)]
            begun.wait(PATIENCE)
            with waiting(wait) as ident:
                assert awaited_by(sys._current_frames()[ident]) is not None
            end.set()
        deadline = time.monotonic() + PATIENCE
        while (ident in sys._current_frames() or kept[0]()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert kept[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("pooled", [False, True])
def test_what_a_thread_does_counts_for_the_loop_that_waits_for_it(
    pooled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHYIDLE_DIR", str(tmp_path))
    monkeypatch.delenv("WHYIDLE", raising=False)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    until = time.monotonic() + 2.5

    def save_weights() -> None:
        time.sleep(0.3)

    assert whyidle.attach()
    try:
        with ThreadPoolExecutor() as pool:
            while time.monotonic() < until:
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
                if pooled:
                    pool.submit(save_weights).result()
                else:
                    thread = threading.Thread(target=save_weights)
                    thread.start()
                    thread.join()
    finally:
        whyidle.detach()
    (ledger,) = [read_ledger(str(path)) for path in tmp_path.glob("*.ledger")]
    blocked = ledger.words["saving_looks"][STATES.index("blocked")]
    assert blocked > 0.5 * ledger.words["base_looks"][0] > 0, {n: v for n, v in ledger.words.items() if "look" in n}
    assert "save_weights" in ledger.strings["saving_below"]
