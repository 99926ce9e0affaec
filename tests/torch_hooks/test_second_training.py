"""Another training in the same process, in a thread that is not recorded, changes nothing of the recorded one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

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
