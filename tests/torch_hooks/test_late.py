"""Looks that come late, and what the training thread did when they were due."""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest
from test_below import of_torch, stack

from whyidle.ledger.below import STATES
from whyidle.ledger.causes import PHASE
from whyidle.ledger.layout import WORD_AT
from whyidle.torch_hooks import frames as frames_module
from whyidle.torch_hooks import thread_state
from whyidle.torch_hooks.below import Below, caller_of_model
from whyidle.torch_hooks.frames import Frames, Look
from whyidle.torch_hooks.late import PROMPT, Delay, Lateness
from whyidle.torch_hooks.moments import Moments
from whyidle.torch_hooks.thread_state import BLOCKED, LOCK, RUNS, Hidden
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
        one.expect(0, 0)
        one.how(round(usual * MS))
    one.expect(0, 0)
    assert one.how(round(late * MS)) == found


def test_a_look_stands_for_the_periods_that_had_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Lateness()
    monkeypatch.setattr(one, "_queue", lambda: 0)
    one.expect(700 * MS, 1000 * MS)
    assert one.stands_for(700 * MS) == 1000 * MS
    one.expect(1200 * MS, 1000 * MS)  # for this round there was no CPU time left
    one.expect(2500 * MS, 1000 * MS)
    assert one.stands_for(5500 * MS) == 4500 * MS, "two or three others were due meanwhile"
    one.expect(6100 * MS, 1000 * MS)
    assert one.stands_for(6500 * MS) == 1080 * MS, "with a probability of 0.08 another one was"


def test_looks_that_calls_delay_stand_for_the_time_that_these_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that keeps Python's lock takes 0.3 s of each second. A look is due in each quarter."""
    one, moments = Lateness(), Moments()
    monkeypatch.setattr(one, "_queue", lambda: 0)
    now = due = 0
    period, step, free = 250 * MS, 1000 * MS, 700 * MS
    stands = {True: 0, False: 0}
    for _ in range(4000):
        due += round(1e9 * moments.pause(0.25))
        if due <= now:
            due += period * ((now - due) // period + 1)
        one.expect(due, period)
        in_call = due % step >= free
        now = due - due % step + step if in_call else due
        stands[in_call] += one.stands_for(now)
    assert stands[True] / sum(stands.values()) == pytest.approx(0.3, abs=0.03)
    assert sum(stands.values()) == pytest.approx(now, rel=0.05)


def test_nobody_knows_what_is_usual_after_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Lateness()
    monkeypatch.setattr(one, "_queue", lambda: 0)
    one.expect(0, 0)
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
    machine.after = None
    machine.write_string = lambda *_: None
    words[WORD_AT["phase"][0]], words[WORD_AT["phase_since_ns"][0]] = PHASE[phase], time.monotonic_ns()
    monkeypatch.setattr(frames, "_state", lambda *_: BLOCKED)
    SlowEnv().step(1)
    assert words[WORD_AT["acting_looks"][0] + STATES.index("blocked")] == 1


def test_a_thread_that_logs_does_not_write_what_the_training_saves(frames: Frames) -> None:
    begun, ends = threading.Barrier(3), threading.Event()

    def upload() -> None:
        begun.wait()
        ends.wait()

    def log_metrics() -> None:
        upload()

    cast(Any, frames._machine).owner = threading.get_ident()
    sends, logs = threading.Thread(target=upload), threading.Thread(target=log_metrics)
    for thread in (sends, logs):
        thread.start()
    begun.wait()
    found, known = frames.writers(), dict(frames._below._works)
    assert sends.native_id in found
    assert logs.native_id not in found
    assert frames.purpose() == ""
    assert dict(frames._below._works) == known, "it is no look more"
    ends.set()
    for thread in (sends, logs):
        thread.join()


def test_a_comprehension_is_at_the_line_of_its_function() -> None:
    def tells() -> list[Place]:
        return next(list(places(sys._getframe())) for _ in "x")

    assert [place.function for place in tells()][:2] == ["tells", "test_a_comprehension_is_at_the_line_of_its_function"]


@pytest.mark.parametrize(
    ("seen", "awaited_ms", "computed_ms", "state"),
    [
        (LOCK, 100, 2500, LOCK),
        (LOCK, 100, 400, LOCK),
        (LOCK, 3000, 2500, RUNS),
        (LOCK, None, 2500, RUNS),
        (BLOCKED, 100, 2500, BLOCKED),
    ],
    ids=["a burst", "a short burst", "a burst long ago", "no burst in steps", "blocked on something else"],
)
def test_waits_for_a_thread_that_holds_pythons_lock_in_bursts_are_seen_in_looks_that_are_seconds_apart(
    seen: int, awaited_ms: int | None, computed_ms: int, state: int, frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training thread had a CPU for 5 s of the 8 s since the last look."""
    now = 10**15
    cast(Any, frames._machine).write_string = lambda *_: None
    frames._task = cast(Any, SimpleNamespace(state=lambda: seen, spent=lambda: 5000 * MS))
    monkeypatch.setattr(frames, "_busiest", lambda: ("metrics", computed_ms * MS))
    frames._last_ns = now - 8000 * MS
    frames._threads.lock.awaited_ns = 0 if awaited_ms is None else now - awaited_ms * MS
    assert frames._state(now, held=False, long=False) == state
    assert (frames._threads.lock.seen_until_ns > now) == (state == LOCK)
    assert not (frames._threads.lock.not_held and state == LOCK)


@pytest.mark.parametrize(
    ("faults", "own_ms", "found"),
    [(3, 1, True), (3, 9, False), (0, 1, False)],
    ids=["waits", "computes", "waits for something else"],
)
def test_a_thread_that_keeps_pythons_lock_waits_for_pages_if_it_goes_on_doing_so(
    faults: int, own_ms: int, found: bool, frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment lasts 10 ms."""
    clock, passed = time.monotonic_ns(), 0
    frames._major = clock, 7
    frames._task = cast(Any, SimpleNamespace(spent=lambda: own_ms * MS * passed, faults=lambda: 7 + faults * passed))

    def moment(_: float) -> None:
        nonlocal passed
        passed = 1

    monkeypatch.setattr("time.sleep", moment)
    monkeypatch.setattr("time.monotonic_ns", lambda: clock + 10 * MS * passed)
    assert frames._waits_for_pages() == found


@pytest.mark.parametrize(
    ("kept", "seen", "computes", "blocked"),
    [
        (0.7, 0.0, 0.3, True),
        (0.7, 0.0, 0.9, False),
        (0.3, 0.6, 0.4, False),
        (0.8, 0.0, 0.5, False),
        (0.3, 0.5, 0.1, True),
        (0.0, 0.6, 0.4, False),
    ],
    ids=["pages", "computes", "blocked elsewhere", "both", "pages, and blocked elsewhere", "keeps no lock"],
)
def test_calls_that_keep_pythons_lock_are_blocked_if_nothing_else_explains_the_time(
    kept: float, seen: float, computes: float, blocked: bool
) -> None:
    hidden = Hidden()
    for number in range(20):
        found = number / 20 < kept, (19 - number) / 20 < seen
        hidden.add(*found, 100 * MS, round(computes * 100 * MS))
        assert number >= 5 or not hidden.are_blocked(), "few looks"
    assert hidden.are_blocked() == blocked


@pytest.mark.parametrize(
    ("state", "then", "own_ms", "other_ms", "locked"),
    [
        (LOCK, LOCK, 0, 5, True),
        (LOCK, LOCK, 1, 3, True),
        (LOCK, LOCK, 0, 1, False),
        (LOCK, LOCK, 3, 3, False),
        (RUNS, LOCK, 0, 5, True),
        (LOCK, RUNS, 0, 5, True),
        (RUNS, RUNS, 0, 5, False),
        (RUNS, RUNS, 1, 5, True),
        (LOCK, BLOCKED, 0, 5, False),
    ],
    ids=[
        "held",
        "mostly",
        "by nobody",
        "both compute",
        "had it",
        "has just got it",
        "queues for a CPU",
        "had and has it",
        "blocked",
    ],
)
def test_who_holds_pythons_lock_shows_in_the_next_moment(
    state: int, then: int, own_ms: int, other_ms: int, locked: bool, frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look waits for the lock itself, for 5 ms."""
    passes = iter((1000 * MS, 1005 * MS))
    own, others = iter((0, own_ms * MS)), iter((0, other_ms * MS))
    said = {}
    cast(Any, frames._machine).write_string = said.__setitem__
    monkeypatch.setattr(frames_module, "time", SimpleNamespace(monotonic_ns=lambda: next(passes), sleep=lambda _: None))
    monkeypatch.setattr(frames, "_spent_by", lambda tid: next(others))
    turns = iter((7, 7 + own_ms))
    task = SimpleNamespace(state=lambda: then, spent=lambda: next(own), turns=lambda: next(turns))
    assert frames._is_locked(cast(Any, task), state, 7, "metrics") == locked
    assert said == ({"lock_thread": "metrics"} if locked else {})


def test_a_thread_that_queues_for_a_cpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    task = thread_state.ThreadState(threading.get_native_id())
    before = task.spent()
    monkeypatch.setattr(thread_state.proc, "read", lambda *_: b"0 999999000000 7\n")
    assert task.spent() - before > 10**11


def test_threads_of_one_name_compute_together(frames: Frames) -> None:
    before = {1: ("save", 5), 2: ("save", 10), 3: ("log", 0)}
    assert thread_state.busiest(before, {1: ("save", 30), 2: ("save", 40), 3: ("log", 50), 4: ("new", 20)}) == (
        "save",
        55,
    )
    assert thread_state.busiest({}, {}) == ("", 0)


CLIPS = ("train:main", "torch.nn.utils.clip_grad:clip_grad_norm_")


@pytest.mark.parametrize(
    ("frame", "long", "kept"),
    [
        (stack("train:main", "train:encode"), False, True),
        (stack("train:main", "torch.nn.modules.linear:Linear.forward"), False, True),
        (stack(*CLIPS), False, False),
        (stack("train:main", "train:encode"), True, True),
        (stack("train:main", "torch.nn.modules.linear:Linear.forward"), True, False),
        (of_torch(), True, False),
    ],
    ids=["Python code", "and then torch", "a call of torch", "another call", "of a module", "perhaps of torch"],
)
def test_code_that_is_not_of_torch_keeps_pythons_lock_and_does_not_wait_for_the_device(
    frame: FrameType, long: bool, kept: bool, frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    cast(Any, frames._machine).owner = 0
    monkeypatch.setattr(frames_module, "sys", SimpleNamespace(_current_frames=lambda: {0: frame}))
    assert frames.kept_the_lock(frames.call() if long else None) == kept


def test_a_line_where_torch_has_kept_the_lock_for_long_may_wait(
    frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    cast(Any, frames._machine).owner = 0
    monkeypatch.setattr(frames_module, "sys", SimpleNamespace(_current_frames=lambda: {0: of_torch()}))
    kept = [frames.kept_the_lock(frames.call() if long else None) for long in (False, True, False)]
    assert kept == [True, False, False]


def test_a_look_at_a_call_does_not_wait_for_another_look(frames: Frames, monkeypatch: pytest.MonkeyPatch) -> None:
    """To wait would give Python's lock up."""
    cast(Any, frames._machine).owner = 0
    own = stack("train:main", "train:encode")
    monkeypatch.setattr(frames_module, "sys", SimpleNamespace(_current_frames=lambda: {0: own}))
    with frames._counting:
        assert frames.call() is not None


def test_autograds_thread_launches_the_operations_of_a_backward_pass(frames: Frames) -> None:
    machine = cast(Any, frames._machine)
    machine.helper_tid = tid = threading.get_native_id() + 1
    backward = stack("train:main", "torch.autograd.graph:_engine_run_backward")
    assert frames._launches_in(backward).tid == tid
    ours = stack("torch.autograd.graph:_engine_run_backward", "whyidle.torch_hooks.hooks.backward:run_backward")
    assert frames._launches_in(ours).tid == tid
    assert frames._launches_in(backward) is frames._launches_in(backward)
    assert frames._launches_in(stack("train:main")) is frames._task
    machine.helper_tid = 0
    assert frames._launches_in(backward) is frames._task


def test_a_thread_that_has_computed_much_since_the_last_look_may_hold_the_lock(
    frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(1000 * MS * number for number in range(1, 5))
    others = iter(
        ({7: ("a", 0), 8: ("b", 0)}, {7: ("a", 40 * MS)}, {7: ("a", 90 * MS), 8: ("b", 9)}, {7: ("a", 140 * MS)})
    )
    monkeypatch.setattr(frames_module, "time", SimpleNamespace(monotonic_ns=lambda: next(times)))
    monkeypatch.setattr(frames, "_spent_by_others", lambda: next(others))
    assert [frames._rival() for _ in range(4)] == [None, None, (7, "a"), (7, "a")]
