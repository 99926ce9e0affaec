"""One thread runs all probes: which go on, which are switched off, and what stops the thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support_ledgers import until

from whyidle.torch_hooks.watcher import Probe, Watcher

Start = Callable[..., Watcher]


class Counting:
    """A probe that counts its runs, in the thread that makes them."""

    def __init__(self, name: str, error: Exception | None = None, cpu: float = 0.0):
        self.name, self.runs, self._error, self._cpu = name, 0, error, cpu

    def __call__(self) -> None:
        self.runs += 1
        if self._error is not None:
            raise self._error
        end = time.thread_time() + self._cpu
        while time.thread_time() < end:
            pass

    def row(self, **options: bool) -> Probe:
        return Probe(self.name, self, lambda: 0.001, **options)


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Watcher] = []

    def start(*probes: Probe, off: Callable[[str, Exception], object] = lambda *_: None) -> Watcher:
        started.append(Watcher([*probes], "whyidle-test", off))
        return started[-1]

    yield start
    for watcher in started:
        watcher.stop()


def test_a_probe_that_fails_is_switched_off_alone(start: Start) -> None:
    bad, good, told = Counting("bad", ValueError("no such file")), Counting("good"), []
    start(bad.row(), good.row(), off=lambda name, error: told.append((name, str(error))))
    until(lambda: told and good.runs > 3)
    assert (bad.runs, told) == (1, [("bad", "no such file")])


def test_a_vital_probe_goes_on_after_a_failure(start: Start) -> None:
    bad = Counting("flush", OSError("full"))
    start(bad.row(vital=True))
    until(lambda: bad.runs > 3)


def test_a_probe_that_costs_too_much_is_switched_off_alone(start: Start) -> None:
    dear, good, told = Counting("dear", cpu=0.006), Counting("good"), []
    start(dear.row(), good.row(vital=True), off=lambda name, _: told.append(name))
    until(lambda: told)
    assert (dear.runs, told) == (3, ["dear"])
    runs = good.runs
    until(lambda: good.runs > runs)


def test_limited_probes_pause_when_their_budget_is_used_up(start: Start) -> None:
    """4 ms of CPU time a run are 8 s of the budget of 0.05 %, and 20 ms are free."""
    dear, good = Counting("dear", cpu=0.004), Counting("good")
    start(dear.row(), good.row(vital=True))
    until(lambda: good.runs > 100)
    assert 1 < dear.runs <= 7


def test_a_stopped_watcher_runs_nothing_until_it_is_started_again(start: Start) -> None:
    probe = Counting("probe")
    watcher = start(probe.row(limited=False))
    until(lambda: probe.runs)
    watcher.stop()
    assert not any(thread.name == "whyidle-test" for thread in threading.enumerate())
    runs = probe.runs
    watcher.start()
    until(lambda: probe.runs > runs)
