"""A device that stops while its host continues: the boundary that it has not passed is found, with queries only after
silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support_stream import SimEvent, SimStream

from whyidle.ledger.reader import Position, parse_ledger
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks.device_clock import DeviceClock
from whyidle.torch_hooks.machine import COMPUTE, PhaseMachine
from whyidle.torch_hooks.stuck import SILENT_NS, DeviceProbes
from whyidle.torch_hooks.wait_codes import wait_code

MS, SECOND = 1_000_000, 1_000_000_000
WAIT = wait_code(2)


class Rank:
    """A host that has enqueued compute, a wait, compute and another wait, on a simulated stream."""

    def __init__(self, writer: LedgerWriter):
        self.writer = writer
        self.stream = SimStream(now_ns=10 * SECOND)
        self.machine = PhaseMachine(writer.words, self.stream.start_ns)
        clock = self.machine.device = DeviceClock(
            self.stream, lambda _: None, self.stream.start_ns, now=self.stream.now
        )
        self.asked = 0
        self.watcher = DeviceProbes(self.machine, lambda: SimpleNamespace(passed=self._passed))  # type: ignore[arg-type]
        for phase, ns in ((COMPUTE, 5 * MS), (WAIT, 3 * MS), (COMPUTE, 5 * MS), (WAIT, 3 * MS)):
            self.stream.launch(ns, cost_ns=1000)
            clock.mark(self.stream.boundary(), phase)
        self.ends = [5 * MS, 8 * MS, 13 * MS, 16 * MS]

    def _passed(self, event: object) -> bool | None:
        self.asked += 1
        return self.stream.done(event)  # type: ignore[arg-type]

    def look(self, after_ns: int) -> Position:
        """The phase of the rank after the watcher has looked this long after the start, and once more."""
        for _ in range(2):
            self.stream.now_ns = max(self.stream.now_ns, self.stream.start_ns + after_ns)
            self.watcher.look(self.stream.now_ns)
        return parse_ledger(bytes(self.writer.words), "here", alive=True).position


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    strings = {"run": "r", "node": "n", "device": "sim:0", "uuid": ""}
    writer = LedgerWriter(str(tmp_path), strings, {"rank": 0, "world_size": 2, "device_index": 0})
    yield Rank(writer)
    writer.close()


def stop_device_at(rank: Rank, ns: int) -> None:
    """The device never passes what it has not passed by then."""
    passed = rank.stream._passed
    rank.stream._passed = lambda event: event.passed_ns <= rank.stream.start_ns + ns and passed(event)  # type: ignore[method-assign]


def test_asks_nothing_while_the_host_makes_progress(rank: Rank) -> None:
    stop_device_at(rank, 6 * MS)
    assert rank.look(SILENT_NS // 2).phase == "startup"  # the phase of the host
    assert not rank.asked


def test_an_idle_device_is_in_the_phase_of_its_host(rank: Rank) -> None:
    assert rank.look(3 * SECOND).phase == "startup"
    assert rank.asked


@pytest.mark.parametrize(
    ("stops", "phase", "slot", "ahead"),
    [
        (2 * MS, "compute", -1, 2),
        (6 * MS, "collective", 2, 1),
        (10 * MS, "compute", -1, 1),
        (14 * MS, "collective", 2, 0),
    ],
)
def test_finds_the_phase_in_which_the_device_stopped(rank: Rank, stops: int, phase: str, slot: int, ahead: int) -> None:
    stop_device_at(rank, stops)
    found = rank.look(3 * SECOND)
    assert (found.phase, found.slot) == (phase, slot)
    assert found.since_ns <= rank.stream.start_ns + 3 * SECOND
    ledger = parse_ledger(bytes(rank.writer.words), "here", alive=True)
    assert sum(ledger.words["slot_ahead"]) == ahead


@pytest.mark.parametrize(("passes", "phase", "slot"), [(False, "collective", 3), (True, "compute", -1)])
def test_a_wait_for_an_event_lasts_until_the_event_has_passed(rank: Rank, passes: bool, phase: str, slot: int) -> None:
    clock, stream = rank.machine.device, rank.stream
    assert clock is not None
    event = SimEvent(stream.now() if passes else 1 << 62)
    clock.mark(stream.boundary(), COMPUTE, until=(wait_code(3), event))
    stream.wait_for(event.passed_ns)
    stream.launch(1 << 61, cost_ns=1000)
    clock.mark(stream.boundary(), COMPUTE)
    found = rank.look(3 * SECOND)
    assert (found.phase, found.slot) == (phase, slot)


def test_a_device_that_continues_is_in_the_phase_of_its_host(rank: Rank) -> None:
    passed = rank.stream._passed
    stop_device_at(rank, 6 * MS)
    assert rank.look(3 * SECOND).phase == "collective"
    rank.stream._passed = passed  # type: ignore[method-assign]
    assert rank.look(5 * SECOND).phase == "startup"
    assert not any(parse_ledger(bytes(rank.writer.words), "here", alive=True).words["slot_ahead"])


def test_reports_nothing_if_the_device_cannot_be_asked(rank: Rank) -> None:
    rank.stream.capturing = True
    assert rank.look(3 * SECOND).phase == "startup"
