"""What a signal handler of the program raises reaches the program, also if it interrupts a hook."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from whyidle.ledger.layout import WORD_AT
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks.handlers import of_a_handler
from whyidle.torch_hooks.machine import COMPUTE, DATA, STARTUP, PhaseMachine


class TimeIsUp(Exception):
    pass


def raises(number: int, frame: object) -> None:
    raise TimeIsUp


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
    "one", [raises, Limit().method, Limit(), partial(raises)], ids=["function", "method", "object", "partial"]
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


class Meter:
    """Fails, or a signal comes, while it measures."""

    def __init__(self, does: Callable[[], object]):
        self.does = does

    def resume(self) -> None:
        self.does()


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
