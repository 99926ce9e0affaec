"""What a signal handler of the program raises reaches the program, also if it interrupts a hook."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from whyidle.ledger.layout import WORD_AT
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks import attach
from whyidle.torch_hooks import machine as machine_module
from whyidle.torch_hooks.handlers import of_a_handler
from whyidle.torch_hooks.machine import CHECKPOINT, COMPUTE, DATA, STARTUP, PhaseMachine
from whyidle.torch_hooks.meters.save import SaveMeter
from whyidle.torch_hooks.threads import OwnThreads
from whyidle.torch_hooks.wait_codes import UNKNOWN_WAIT


class TimeIsUp(Exception):
    pass


def raises(number: int, frame: object) -> None:
    raise TimeIsUp


def ends(number: int, frame: object) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    raise TimeIsUp


def passed_on(*args: object) -> None:
    ends(*args)  # type: ignore[arg-type]


class Limit:
    def method(self, number: int, frame: object) -> None:
        raise TimeIsUp

    def __call__(self, number: int, frame: object) -> None:
        raise TimeIsUp


@pytest.fixture
def handler() -> Iterator[Callable[[object], object]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda one: signal.signal(signal.SIGUSR1, one)  # type: ignore[arg-type, return-value]
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "one",
    [raises, Limit().method, Limit(), partial(raises), ends, passed_on],
    ids=["function", "method", "object", "partial", "sets another one", "calls one"],
)
def test_knows_what_a_handler_has_raised(one: object, handler: Callable[[object], object]) -> None:
    handler(one)
    with pytest.raises(TimeIsUp) as caught:
        signal.raise_signal(signal.SIGUSR1)
    assert of_a_handler(caught.value)


def test_other_exceptions_are_not_of_a_handler(handler: Callable[[object], object]) -> None:
    handler(raises)
    with pytest.raises(ZeroDivisionError) as caught:
        print(1 // 0)
    assert not of_a_handler(caught.value)


def test_a_function_that_looks_at_its_caller_is_not_a_handler() -> None:
    def fails(frame: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fails(sys._getframe())
    assert not of_a_handler(caught.value)


class Meter:
    """Fails, or a signal comes, while it measures."""

    def __init__(self, does: Callable[[], object]):
        self.does = does

    def resume(self) -> None:
        self.does()

    due_ns = 0

    def begin(self, now: int) -> None:
        self.does()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[PhaseMachine]:
    strings = {"run": "r", "node": "n", "device": "cpu", "uuid": ""}
    writer = LedgerWriter(str(tmp_path), strings, {"rank": 0, "world_size": 1})
    machine = PhaseMachine(writer.words, 0)
    machine.begin()
    yield machine
    writer.close()


def data(machine: PhaseMachine) -> None:
    machine.leave(machine.enter(DATA))


def save(machine: PhaseMachine) -> None:
    old = machine.enter_save(SaveMeter(None, OwnThreads()))
    machine.leave_save(old)


def wait(machine: PhaseMachine) -> None:
    old = machine.enter_wait(UNKNOWN_WAIT)
    machine.leave_wait(old)


def wait_in_a_save(machine: PhaseMachine) -> None:
    old = machine.enter(CHECKPOINT)
    try:
        wait(machine)
    finally:
        machine.leave(old)


@pytest.mark.parametrize("brackets", [data, save, wait, wait_in_a_save])
@pytest.mark.parametrize("flushes", [False, True])
def test_a_phase_is_left_whenever_a_handler_raises(
    brackets: Callable[[PhaseMachine], None],
    flushes: bool,
    machine: PhaseMachine,
    handler: Callable[[object], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A handler runs after a function of C has returned, or when a function of Python begins."""
    handler(raises)
    left = 0

    def comes_at(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal left
            left -= 1
            found = original(*args)
            if left == 0:
                signal.raise_signal(signal.SIGUSR1)
            return found

        return call

    for name in ("_now", "_thread"):
        monkeypatch.setattr(machine_module, name, comes_at(getattr(machine_module, name)))
    machine._flush = comes_at(machine._flush)
    for at in range(1, 100):
        left, machine._flush_ns = at, 0 if flushes else 1 << 62
        try:
            brackets(machine)
            break
        except TimeIsUp:
            assert (at, machine.phase) == (at, COMPUTE)
    assert (at > 4, machine.phase, machine.saving) == (True, COMPUTE, None)


@pytest.mark.parametrize(("one", "raised"), [(raises, TimeIsUp), (signal.default_int_handler, KeyboardInterrupt)])
def test_a_wait_is_not_entered_if_a_handler_raises_in_its_meter(
    one: object, raised: type[BaseException], machine: PhaseMachine, handler: Callable[[object], object]
) -> None:
    handler(one)
    machine.waits = Meter(lambda: signal.raise_signal(signal.SIGUSR1))  # type: ignore[assignment]
    with pytest.raises(raised):
        machine.enter_wait(UNKNOWN_WAIT)
    assert machine.phase == COMPUTE


@pytest.mark.parametrize("fails", [False, True])
def test_the_phase_machine_hands_it_on_and_counts_what_fails_in_the_hooks(
    fails: bool, handler: Callable[[object], object], tmp_path: Path
) -> None:
    handler(raises)
    writer = LedgerWriter(
        str(tmp_path), {"run": "r", "node": "n", "device": "cpu", "uuid": ""}, {"rank": 0, "world_size": 1}
    )
    machine = PhaseMachine(writer.words, 0)
    machine.fetching = Meter((lambda: 1 // 0) if fails else lambda: signal.raise_signal(signal.SIGUSR1))  # type: ignore
    if fails:
        machine.cut(DATA)
    else:
        with pytest.raises(TimeIsUp):
            machine.cut(DATA)
    assert writer.words[WORD_AT["faults"][0]] == fails
    machine.fetching = None
    assert machine.cut(COMPUTE) == (DATA if fails else STARTUP)
    writer.close()


@pytest.mark.parametrize(("name", "interrupted"), [("data", "fetch_begins"), ("logging", "own_task")])
def test_a_phase_of_the_user_is_left_if_a_handler_raises_before_it_has_begun(
    name: str, interrupted: str, machine: PhaseMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`with` does not call `__exit__` if `__enter__` raises."""

    def raises_() -> None:
        raise TimeIsUp

    parts = {"fetch_begins": raises_, "fetch_ends": int, "own_task": raises_}
    monkeypatch.setattr(attach, "_session", SimpleNamespace(machine=machine, **parts))
    before = machine.phase
    with pytest.raises(TimeIsUp), attach.phase(name):
        raise AssertionError("it has not begun")
    assert machine.phase == before
