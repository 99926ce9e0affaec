"""Looks that come late, and what the training thread did when they were due."""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest
from test_below import stack

from whyidle.ledger.below import STATES
from whyidle.ledger.causes import PHASE
from whyidle.ledger.layout import WORD_AT
from whyidle.torch_hooks.below import Below, caller_of_model
from whyidle.torch_hooks.frames import _BLOCKED, _LOCK, _RUNS, Frames, Look
from whyidle.torch_hooks.late import PROMPT, Delay, Lateness
from whyidle.torch_hooks.threads import OwnThreads
from whyidle.torch_hooks.user_code import Place, places

MS = 1_000_000
COLLECT, FORWARD = Place("train.py", 16, "collect", first_line=9), Place("model.py", 8, "forward", first_line=6)
MAIN, STEP = Place("train.py", 31, "main", first_line=26), Place("envs.py", 8, "step", first_line=5)


@pytest.mark.parametrize(
    ("late", "found"),
    [
        (0.3, PROMPT),
        (0.45, PROMPT),
        (0.6, Delay(brief=True)),
        (1.5, Delay(held=True)),
        (1e3 * sys.getswitchinterval() + 0.2, Delay(forced=True)),
        (9.0, Delay(held=True, long=True)),
    ],
)
def test_a_look_that_is_later_than_prompt_ones_has_waited_for_pythons_lock(
    late: float, found: Delay, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Lateness()
    monkeypatch.setattr(one, "_queue", lambda: 0)
    for usual in (0.3, 0.32, 0.31, 0.4):
        one.expect(0)
        one.how(round(usual * MS))
    one.expect(0)
    assert one.how(round(late * MS)) == found


def test_nobody_knows_what_is_usual_after_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Lateness()
    monkeypatch.setattr(one, "_queue", lambda: 0)
    one.expect(0)
    assert one.how(round(0.9 * MS)) == PROMPT


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> Frames:
    words = memoryview(bytearray(8 * max(at + size for at, size in WORD_AT.values()))).cast("q")
    words[WORD_AT["base_looks"][0]] = 100
    found = Frames(cast(Any, SimpleNamespace(words=words)), threading.get_native_id(), OwnThreads())
    found._always = {(MAIN.file, MAIN.first_line)}
    return found


def look(*stack: Place, in_torch: bool) -> Look:
    return Look(list(stack), None, in_torch, inside=False, acts=False)


def due(frames: Frames, found: Look, *, held: bool = False, brief: bool = False) -> Look:
    return frames._as_due(0, found, stack("train:main", "train:collect"), held, brief)


def test_a_look_that_torch_has_let_in_was_due_in_what_the_same_function_does(frames: Frames) -> None:
    seen, lands = look(STEP, COLLECT, MAIN, in_torch=False), look(FORWARD, COLLECT, MAIN, in_torch=True)
    assert due(frames, seen) is seen
    assert due(frames, lands, held=True) is seen
    assert due(frames, lands, brief=True) is seen
    assert due(frames, lands) is lands
    other = look(Place("train.py", 23, "evaluate", first_line=18), MAIN, in_torch=True)
    assert due(frames, other, brief=True) is other
    frames._alone = False
    assert due(frames, lands, held=True) is lands


def test_if_nothing_was_seen_it_was_due_in_what_has_called_the_model(frames: Frames) -> None:
    found = due(frames, look(FORWARD, COLLECT, MAIN, in_torch=True), held=True)
    assert (found.in_torch, [place.function for place in found.stack][:2]) == (False, ["collect", "main"])
    frames._machine.words[WORD_AT["inside_looks"][0]] = 1  # the model has Python code that takes long
    assert due(frames, look(FORWARD, COLLECT, MAIN, in_torch=True), held=True).in_torch


def test_the_caller_of_the_outermost_module() -> None:
    module = "torch.nn.modules.module:_call_impl"
    found = caller_of_model(stack("train:main", "train:collect", module, "model:forward", module, "train:act"))
    assert found is not None
    assert found.f_code.co_name == "collect"
    alone = stack("train:main", "train:collect")
    assert caller_of_model(alone) is alone


class Reacher:
    """Has the shape of an environment."""

    def reset(self) -> FrameType:
        return sys._getframe()

    def step(self, action: int) -> FrameType:
        return sys._getframe()


class Decoder:
    """So does this, but it has nothing to observe."""

    def reset(self) -> None:
        self.tokens = [0]

    def step(self, token: int) -> FrameType:
        return sys._getframe()


class Meter:
    def reset(self) -> int:
        return 0

    def step(self) -> FrameType:
        return sys._getframe()


class Schedule:
    def step(self, epoch: int) -> FrameType:
        return sys._getframe()


@pytest.mark.parametrize(
    ("frame", "acts"),
    [
        (Reacher().step(1), True),
        (Reacher().reset(), True),
        (Decoder().step(1), False),
        (Meter().step(), False),
        (Schedule().step(1), False),
    ],
)
def test_an_environment_has_a_reset_and_a_step_that_takes_an_action(frame: FrameType, acts: bool) -> None:
    one = Below(cast(Any, SimpleNamespace()))
    one.find(frame)
    assert one.acts == acts


@pytest.mark.parametrize("phase", ["compute", "rollout"])
def test_an_environment_that_blocks_the_loop_is_seen_in_a_named_rollout_too(
    phase: str, frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowEnv:
        def step(self, action: int) -> None:
            frames.look()

    words, machine = frames._machine.words, cast(Any, frames._machine)
    machine.stepping, machine.owner, machine.device, machine.apart = True, threading.get_ident(), None, False
    machine.write_string = lambda *_: None
    words[WORD_AT["phase"][0]], words[WORD_AT["phase_since_ns"][0]] = PHASE[phase], time.monotonic_ns()
    monkeypatch.setattr(frames, "_state", lambda *_: _BLOCKED)
    SlowEnv().step(1)
    assert words[WORD_AT["acting_looks"][0] + STATES.index("blocked")] == 1


def test_a_comprehension_is_at_the_line_of_its_function() -> None:
    def tells() -> list[Place]:
        return next(list(places(sys._getframe())) for _ in "x")

    assert [place.function for place in tells()][:2] == ["tells", "test_a_comprehension_is_at_the_line_of_its_function"]


@pytest.mark.parametrize(
    ("seen", "awaited_ms", "computed_ms", "state"),
    [
        (_LOCK, 100, 2500, _LOCK),
        (_LOCK, 100, 400, _LOCK),
        (_LOCK, 3000, 2500, _RUNS),
        (_LOCK, None, 2500, _RUNS),
        (_BLOCKED, 100, 2500, _BLOCKED),
    ],
    ids=["a burst", "a short burst", "a burst long ago", "no burst in steps", "blocked on something else"],
)
def test_waits_for_a_thread_that_holds_pythons_lock_in_bursts_are_seen_in_looks_that_are_seconds_apart(
    seen: int, awaited_ms: int | None, computed_ms: int, state: int, frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training thread had a CPU for 5 s of the 8 s since the last look."""
    now = 10**15
    cast(Any, frames._machine).write_string = lambda *_: None
    monkeypatch.setattr(frames, "_kernel_state", lambda: seen)
    monkeypatch.setattr(frames, "_busiest", lambda: ("metrics", computed_ms * MS))
    frames._last_ns, frames._last_cpu = now - 8000 * MS, time.clock_gettime_ns(frames._clock) - 5000 * MS
    frames._threads.lock.awaited_ns = 0 if awaited_ms is None else now - awaited_ms * MS
    assert frames._state(now, held=False, forced=False) == state
    assert (frames._threads.lock.seen_until_ns > now) == (state == _LOCK)
    assert not (frames._threads.lock.not_held and state == _LOCK)
