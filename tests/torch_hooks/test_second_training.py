"""Another training in the same process, in a thread that is not recorded, changes nothing of the recorded one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import whyidle
from whyidle.ledger.reader import read_ledger
from whyidle.torch_hooks.loop import Loop
from whyidle.torch_hooks.session import Session


class Recorded:
    """Stands for the machine of a rank that this thread trains."""

    def __init__(self) -> None:
        self.owner = threading.get_ident()
        self.stepping, self.phase, self.device, self.steps, self.since = True, 0, None, 0, 0

    def mine(self) -> bool:
        return threading.get_ident() == self.owner


@pytest.fixture
def loop() -> Loop:
    session = Session()
    session.machine, session.writer = cast(Any, Recorded()), cast(Any, object())
    session.loop._trained = True
    return session.loop


def elsewhere(*calls: Callable[[], object]) -> None:
    def run() -> None:
        for call in calls:
            call()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def begins(loop: Loop) -> Callable[[], None]:
    return lambda: loop.backward_begins(None)


def test_a_backward_pass_inside_another_one_does_not_end_that_of_the_recorded_training(loop: Loop) -> None:
    """As with checkpoints of activations that are reentrant."""
    loop.steps.backward_begins()
    elsewhere(begins(loop), begins(loop), loop.backward_ends, loop.backward_ends)
    assert (loop.steps.depth, loop.steps._backwards) == (1, 0)
    assert loop._foreign == {}


def test_the_steps_of_a_compiled_optimizer_stay_with_its_training(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(loop, "boundary", lambda: ended.append(loop._session.machine.mine()))
    elsewhere(begins(loop), loop.backward_ends)
    for _ in range(4):
        loop.steps.backward_begins()
        loop.steps.backward_ends()
        loop.compiled_step[0] = True
        elsewhere(begins(loop), loop.backward_ends)
        if loop.compiled_step[0]:
            loop.take_note()
    assert ended == [True] * 4


@pytest.mark.parametrize("trained", [False, True])
def test_a_thread_takes_over_from_one_that_has_not_trained(
    trained: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one has only met other ranks, for example, and serves a window or requests."""
    monkeypatch.setenv("WHYIDLE_DIR", str(tmp_path))
    monkeypatch.delenv("WHYIDLE", raising=False)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    assert whyidle.attach()
    try:
        if trained:
            train()
        elsewhere(train)
    finally:
        whyidle.detach()
    ledgers = [read_ledger(str(path)) for path in tmp_path.glob("*.ledger")]
    assert [one.steps for one in ledgers] == [3]
