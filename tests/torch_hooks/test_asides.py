"""Blocked time is taken from the kind of work in which the training thread was idle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from test_books import WORLD, Told, cause, new_writer

import whyidle
from whyidle.torch_hooks.books import Books
from whyidle.torch_hooks.evaluations import Evaluations
from whyidle.torch_hooks.machine import COMPUTE, EVAL, ROLLOUT, PhaseMachine
from whyidle.torch_hooks.meters import aside

MS = 1_000_000


@pytest.fixture
def words(tmp_path: Path) -> Iterator[memoryview]:
    writer = new_writer(tmp_path)
    yield writer.words
    writer.close()


def spent(words: memoryview) -> list[int]:
    return [cause(words, name) for name in ("compute", "evaluation", "rollout", "host_blocked")]


@pytest.mark.parametrize(
    ("rollout", "evaluation", "idle", "blocked", "left"),
    [
        (0, 0, 20, 20, [60, 50, 30, 20]),  # none of it was idle: only the training was
        (20, 0, 20, 20, [80, 50, 10, 20]),
        (10, 10, 20, 20, [80, 40, 20, 20]),
        (10, 10, 40, 40, [60, 40, 20, 40]),  # the training was idle for as long as both together
        (20, 0, 40, 20, [70, 50, 20, 20]),  # other threads worked for it in half of the idle time
        (0, 0, 100, 100, [0, 38, 22, 100]),  # the training had less than that: the rest is of both
    ],
)
def test_each_kind_of_work_loses_its_part(
    rollout: int, evaluation: int, idle: int, blocked: int, left: list[int], words: memoryview
) -> None:
    books = Books(words)
    books.open_window(1)
    for phase, ns in ((COMPUTE, 80), (EVAL, 50), (ROLLOUT, 30)):
        books.charge(phase, ns)
    books.asides.add(ROLLOUT, rollout)
    books.asides.add(EVAL, evaluation)
    books.take_blocked(Told((0, blocked, 0), idle=idle), 160)  # type: ignore[arg-type]
    assert spent(words) == pytest.approx(left, abs=1)


def test_idle_time_follows_work_that_turns_out_to_be_another_kind(words: memoryview) -> None:
    books = Books(words)
    books.open_window(1)
    books.charge(COMPUTE, 100)
    books.charge(EVAL, 60)
    books.asides.add(EVAL, 30)
    books.reclassify(0, EVAL, ROLLOUT, 40)
    books.reclassify(0, COMPUTE, ROLLOUT, 50, 10)
    books.take_blocked(Told((0, 40, 0), idle=40), 160)  # type: ignore[arg-type]
    assert spent(words) == pytest.approx([50, 10, 60, 40], abs=1)


@pytest.mark.parametrize("waits", [False, True])
def test_an_evaluation_that_sleeps_is_idle_also_after_a_wait_for_other_ranks(waits: bool, words: memoryview) -> None:
    machine = PhaseMachine(words, time.monotonic_ns())
    machine.begin()
    old = machine.enter(EVAL)
    time.sleep(0.02)
    if waits:
        machine.leave_wait(machine.enter_wait(WORLD))
        time.sleep(0.02)
    machine.leave(old)
    time.sleep(0.1)
    machine.books.asides.settle(100 * MS)
    assert machine.books.asides.parts[EVAL] >= (0.4 if waits else 0.2)
    assert machine.books.asides.parts[ROLLOUT] == 0.0


class Reads:
    """Counts how often it is asked how long the training thread was awake."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.count = 0
        for owner, name in ((aside, "_thread_cpu"), (Evaluations, "_idled")):
            monkeypatch.setattr(owner, name, self._counting(getattr(owner, name)))

    def _counting(self, original: Callable[..., int]) -> Callable[..., int]:
        def counted(*args: object) -> int:
            self.count += 1
            return original(*args)

        return counted


@pytest.mark.parametrize("with_loader", [False, True], ids=["in compute", "between two steps"])
def test_idle_time_without_gradients_is_measured_unless_it_was_short_there_the_last_time(
    with_loader: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHYIDLE_DIR", str(tmp_path))
    monkeypatch.delenv("WHYIDLE", raising=False)
    assert whyidle.attach()
    try:
        model, batches = torch.nn.Linear(4, 1), [torch.ones(2, 4)] * 7
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        reads, found, clock = Reads(monkeypatch), list[bool](), [0]
        monkeypatch.setattr(Evaluations, "computed", lambda _: clock[0])
        for batch, ms in zip(
            torch.utils.data.DataLoader(batches, batch_size=None) if with_loader else batches,  # type: ignore[arg-type]
            (0, 0, 0, 0, 20, 20, 0),
            strict=True,
        ):
            model(batch).sum().backward()
            optimizer.step()
            before = reads.count
            with torch.no_grad():
                clock[0] += ms * MS
            found.append(reads.count > before)
    finally:
        whyidle.detach()
    assert found == [True, False, False, False, False, True, True]
