"""What follows the work of an evaluation belongs to it as long as looks find the function that evaluates."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_books import new_writer

from whyidle.ledger.layout import WORD_AT
from whyidle.torch_hooks.afterwards import Afterwards
from whyidle.torch_hooks.machine import COMPUTE, EVAL, HOST

MS = 1_000_000


class Clocked(Afterwards):
    """The time passes where the loop says so."""

    now = 0

    def _own(self, phase: int) -> int:
        return self.now

    def _awoken(self) -> int:
        return self.now // 2


class Training:
    """A loop with evaluations. Each look of the watcher is at the function that calls `looks`."""

    def __init__(self, words: memoryview, phase: int, device: object):
        self.moved: list[tuple[int, int, int, int]] = []
        self.machine = SimpleNamespace(
            phase=phase, device=device, after=None, reclassify=lambda *moved: self.moved.append(moved)
        )
        self.evaluations = SimpleNamespace(found=0)
        loop = SimpleNamespace(evaluations=self.evaluations)
        session = SimpleNamespace(machine=self.machine, writer=SimpleNamespace(words=words), task=None, loop=loop)
        self.after = Clocked(cast(Any, session))

    def looks(self, ms: int) -> None:
        if self.machine.after is not None:
            self.machine.after.look(sys._getframe(1), ms * MS)
        self.after.now += ms * MS

    def learns(self) -> None:
        if self.after.stretches:
            self.after.settle()

    def with_metrics(self) -> None:
        self.after.begins()
        self.looks(30)

    def evaluate(self) -> None:
        self.with_metrics()

    def log_save_evaluate(self) -> None:
        self.evaluate()
        self.looks(20)

    def with_metrics_elsewhere(self) -> None:
        self.after.begins()

    def with_decorated_metrics(self) -> None:
        """Gradients are off in a part of them."""
        self.after.begins()
        self.looks(10)
        self.after.pauses()
        self.after.now += 100 * MS
        self.after.goes_on()
        self.looks(20)

    def that_trains(self) -> None:
        self.after.begins()
        self.looks(30)
        self.learns()

    def runs(self, evaluate: str, then: int) -> None:
        for _ in range(2):
            getattr(self, evaluate)()
            if then:
                self.looks(then)
            self.learns()


@pytest.fixture
def words(tmp_path: Path) -> Iterator[memoryview]:
    writer = new_writer(tmp_path)
    yield writer.words
    writer.close()


@pytest.mark.parametrize("phase", [HOST, COMPUTE])
@pytest.mark.parametrize(
    ("evaluate", "then", "ms"),
    [
        ("with_metrics", 0, [30, 30]),
        ("with_metrics", 10, [30, 30]),  # other looks find the loop
        ("log_save_evaluate", 0, [30, 30]),  # and these what it does besides
        ("with_metrics_elsewhere", 30, []),
        ("with_decorated_metrics", 0, [30, 30]),
        ("that_trains", 0, []),
    ],
)
def test_looks_tell_how_much_belongs_to_the_evaluation(
    phase: int, evaluate: str, then: int, ms: list[int], words: memoryview
) -> None:
    training = Training(words, phase, None)
    training.runs(evaluate, then)
    assert training.moved == [(phase, EVAL, one * MS, one * MS // 2) for one in ms]


@pytest.mark.parametrize("phase", [HOST, COMPUTE])
def test_a_device_is_idle_in_what_follows_an_evaluation(phase: int, words: memoryview) -> None:
    """It stays host time. A third of it is for operations that were launched before."""
    training = Training(words, phase, object())

    def looks(ms: int) -> None:
        if training.machine.after is not None:
            training.machine.after.count(None, ms * MS // 3)
            training.machine.after.count(sys._getframe(1), 2 * ms * MS // 3)
        training.after.now += ms * MS

    training.looks = looks  # type: ignore[method-assign]
    training.runs("with_metrics", 0)
    assert training.moved == []
    assert words[WORD_AT["eval_idle_ns"][0]] == 2 * 20 * MS


def test_an_evaluation_without_a_look_is_like_the_ones_before(words: memoryview) -> None:
    training = Training(words, HOST, None)
    training.runs("with_metrics", 0)
    training.moved.clear()
    training.machine.after = SimpleNamespace(look=lambda frame, ns: None)
    training.looks = lambda ms: setattr(training.after, "now", training.after.now + ms * MS)  # type: ignore[method-assign]
    training.runs("with_metrics", 0)
    assert training.moved == [(HOST, EVAL, 30 * MS, 15 * MS)] * 2
