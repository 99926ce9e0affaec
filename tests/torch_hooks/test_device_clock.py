"""The device clock with a simulated stream: the time of each phase is what the device did."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_stream import QUERY_COST_NS, RECORD_COST_NS, SimEvent, SimStream

from whyidle.torch_hooks import anchor, device_clock
from whyidle.torch_hooks.device_clock import NOTHING, STEP, UNMEASURED, WINDOW, DeviceClock, Interval
from whyidle.torch_hooks.in_flight import Launched, SideWait

US, MS = 1_000, 1_000_000
WAITED = 9
"""The phase of waits for events that have timing."""


class Loop:
    """A training loop on a simulated stream, with its device clock."""

    def __init__(self, **how):
        self.stream = SimStream(**how)
        self.given: list[Interval] = []
        self.phases: list[int] = []  # of each host interval
        self.lost: list[bool] = []  # whether the mark at its end got no event
        self.thens: list[int] = []
        stream = self.stream
        self.clock = DeviceClock(stream, self.given.append, stream.start_ns, now=stream.now, sleep=lambda _: None)

    def mark(self, phase: int, parts=None, then: int = NOTHING, until=None) -> None:
        skipped = self.stream.skipped
        host_ns = self.stream.boundary()
        self.clock.mark(host_ns, phase, parts, then, until=until)
        self.phases.append(phase)
        self.lost.append(self.stream.skipped > skipped)
        self.thens.append(then)

    def wait_until(self, phase: int, ns: int) -> None:
        """The phase ends, and the stream waits for an event that another stream passes in ``ns``."""
        stream = self.stream
        ends = SimEvent(stream.now() + ns)
        self.mark(phase, until=(WAITED, ends))
        begun = stream.marks[-1]
        stream.wait_for(ends.passed_ns)
        # The truth: the host's work after the event is not part of the wait.
        stream.marks.append(max(begun, min(stream.now(), ends.passed_ns)))
        self.phases.append(WAITED)
        self.lost.append(self.lost[-1])
        self.thens.append(NOTHING)

    def harvest(self) -> None:
        self.clock.harvest(self.stream.now())

    def settle(self) -> None:
        """A last boundary, after which everything is done and harvested."""
        self.stream.capturing = False
        self.stream.synchronize()
        self.clock.close(self.stream.now(), wait_ns=0)

    def charged(self) -> Counter:
        spent: Counter = Counter()
        for interval in self.given:
            spent[interval.phase] += interval.ns
        return spent

    def expected(self) -> Counter:
        """The truth per phase, with groups of joined intervals of different phases as UNMEASURED."""
        truth = self.stream.truth(self.clock.last_ns)
        spent: Counter = Counter()
        group: list[int] = []
        for i, phase in enumerate(self.phases):
            group.append(i)
            if self.lost[i]:
                continue
            one = len({self.phases[j] for j in group}) == 1
            spent[phase if one else UNMEASURED] += sum(truth[j] for j in group)
            group = []
        spent[UNMEASURED] += sum(truth[j] for j in group) + truth[-1]
        return spent

    def check_sum(self) -> None:
        assert sum(i.ns for i in self.given) == self.clock.last_ns - self.stream.start_ns
        assert all(i.ns >= 0 for i in self.given)
        ends = [self.stream.start_ns, *(i.end_ns for i in self.given)]
        assert ends == sorted(ends)
        assert all(b - a == i.ns for a, b, i in zip(ends, ends[1:], self.given, strict=False))


def nonzero(spent: Counter) -> dict[int, int]:
    return {phase: ns for phase, ns in spent.items() if ns}


PHASES = st.integers(0, 3)
DURATION = st.one_of(st.integers(0, 50 * US), st.integers(0, 20 * MS))
ACTIONS = st.one_of(
    st.tuples(st.just("mark"), PHASES, st.sampled_from([NOTHING, NOTHING, STEP])),
    st.tuples(st.just("mark"), PHASES, st.just(NOTHING)),
    st.tuples(st.just("host"), DURATION),
    st.tuples(st.just("launch"), DURATION),
    st.tuples(st.just("wait_for"), DURATION),
    st.tuples(st.just("wait_until"), PHASES, DURATION),
    st.tuples(st.just("synchronize")),
    st.tuples(st.just("harvest")),
)
CAPTURE = st.tuples(st.just("capture"), st.booleans())


def programs(actions):
    return st.one_of(st.lists(actions, max_size=12), st.lists(actions, min_size=30, max_size=120))


PROGRAM = programs(ACTIONS)
PROGRAM_WITH_CAPTURES = programs(st.one_of(ACTIONS, ACTIONS, ACTIONS, CAPTURE))
DEPTHS = st.sampled_from([1, 2, 5, 1024])


def run(loop: Loop, program) -> None:
    for action, *args in program:
        if action == "mark":
            loop.mark(args[0], then=args[1])
        elif action == "harvest":
            calls = loop.stream.calls
            pending = len(loop.clock._pending)
            loop.harvest()
            assert loop.stream.calls - calls <= pending + 2 * pending.bit_length() + 2
        elif action == "wait_until":
            loop.wait_until(*args)
        elif action == "wait_for":
            loop.stream.wait_for(loop.stream.now() + args[0])
        elif action == "capture":
            loop.stream.capturing = args[0]
        else:
            getattr(loop.stream, action)(*args)


@given(PROGRAM, DEPTHS)
def test_charges_exactly_what_the_device_did(program, depth):
    loop = Loop(depth=depth)
    loop.mark(0)  # on an idle stream: the anchor is exact
    run(loop, program)
    loop.mark(1)
    loop.settle()
    assert nonzero(loop.charged()) == nonzero(loop.expected())
    assert loop.clock.unmeasured == 0
    loop.check_sum()


@given(PROGRAM, DEPTHS, st.integers(0, 20 * MS))
def test_a_first_boundary_behind_queued_work_costs_at_most_that_work(program, depth, ahead):
    loop = Loop(depth=depth)
    loop.stream.launch(ahead)
    loop.mark(0)
    unknown = max(0, loop.stream.drained_ns - loop.stream.marks[0])
    run(loop, program)
    loop.mark(1)
    loop.settle()
    charged, true = loop.charged(), loop.expected()
    assert sum(abs(charged[p] - true[p]) for p in {*charged, *true}) <= 2 * unknown
    loop.check_sum()


@given(PROGRAM_WITH_CAPTURES, DEPTHS, st.sampled_from([2, 3, 8, 1024]))
def test_boundaries_without_an_event_join_the_next(program, depth, ring):
    loop = Loop(depth=depth, ring=ring)
    loop.mark(0)
    run(loop, program)
    loop.settle()
    assert loop.clock.unmeasured == sum(loop.lost)
    assert nonzero(loop.charged()) == nonzero(loop.expected())
    assert [i.then for i in loop.given if i.then] == [t for t in loop.thens if t]
    loop.check_sum()


@given(
    PROGRAM_WITH_CAPTURES,
    st.sampled_from([1, 5, 1024]),
    st.integers(-60, 60),
    st.sampled_from([500, 1000]),
)
def test_error_from_drift_and_coarse_stamps_is_bounded(program, depth, drift_ppm, quantum):
    loop = Loop(depth=depth, drift_ppm=drift_ppm, quantum_ns=quantum, now_ns=5 * MS)
    loop.mark(0)
    run(loop, program)
    loop.settle()
    charged, true = loop.charged(), loop.expected()
    wall = loop.clock.last_ns - loop.stream.start_ns
    drift = 2 * abs(drift_ppm) * wall // 1_000_000
    for phase in {*charged, *true}:
        # Both ends of each interval are wrong by less than the resolution of the stamps, and so is each move of the
        # anchor.
        assert abs(charged[phase] - true[phase]) <= drift + 3 * quantum * (len(loop.phases) + 2)
    loop.check_sum()


def test_rounding_does_not_accumulate(monkeypatch):
    monkeypatch.setattr(anchor, "ANCHOR_NS", 5 * MS)  # many anchors
    chance = random.Random(7)
    loop = Loop(quantum_ns=500)
    loop.mark(0)
    for number in range(20_000):
        loop.stream.launch(chance.randrange(1, 9_000), cost_ns=100)
        loop.mark(1)
        loop.stream.host(chance.randrange(1, 9_000))
        loop.mark(2)
        if number % 10 == 0:
            loop.harvest()
    loop.settle()
    charged, true = loop.charged(), loop.expected()
    for phase in (1, 2):
        # 20,000 intervals, half a microsecond each at worst, would be 10 ms: 5 % of either phase.
        assert abs(charged[phase] - true[phase]) < 0.002 * true[phase]
    loop.check_sum()


@pytest.mark.parametrize("drift_ppm", [-50, 50])
def test_two_hours_of_drifting_clocks_stay_pinned_to_the_host(drift_ppm):
    loop = Loop(drift_ppm=drift_ppm, quantum_ns=500)
    loop.mark(0)
    behind = []
    for _ in range(7_200):
        loop.stream.launch(600 * MS)
        loop.mark(1)
        loop.stream.host(400 * MS)
        loop.stream.synchronize()
        loop.stream.host(399 * MS)
        loop.mark(2)
        loop.stream.host(5 * US)
        loop.harvest()
        behind.append(loop.stream.now() - loop.given[-1].end_ns)
    assert min(behind) >= 0
    assert max(behind) < 10 * US + 500
    loop.settle()
    charged, true = loop.charged(), loop.expected()
    for phase in (1, 2):
        assert abs(charged[phase] - true[phase]) <= 50e-6 * loop.stream.now() + 10 * MS
    loop.check_sum()


def test_a_wait_behind_queued_work_is_charged_only_for_the_idle_it_caused():
    loop = Loop()
    loop.mark(0)
    loop.stream.launch(10 * MS)
    loop.mark(1)
    drained = loop.stream.drained_ns
    loop.stream.host(30 * MS)  # waits for a batch: the device has work for the first 10 ms of it
    loop.mark(2)
    end = loop.stream.marks[-1]
    loop.settle()
    assert loop.charged()[2] == end - drained


def test_exposed_part_of_a_collective_is_charged_to_the_wait():
    loop = Loop()
    loop.mark(0)
    loop.stream.launch(10 * MS)
    loop.mark(1)
    loop.stream.wait_for(loop.stream.drained_ns + 7 * MS)  # the host continues at once
    loop.mark(2)
    loop.stream.launch(3 * MS)
    loop.mark(1)
    loop.settle()
    assert loop.charged()[2] == 7 * MS


def test_a_wait_ends_with_the_event_that_is_waited_for():
    loop = Loop()
    loop.mark(0)
    loop.stream.launch(10 * MS, cost_ns=0)
    loop.wait_until(1, 17 * MS)  # 7 of them are behind the work
    loop.stream.launch(3 * MS, cost_ns=0)
    loop.wait_until(1, 2 * MS)  # over before the stream reaches it
    loop.stream.launch(4 * MS, cost_ns=0)
    recorded = loop.stream.ring - loop.stream.free
    loop.mark(1)
    loop.settle()
    assert recorded == 3  # one event per wait, and that of the first boundary
    assert loop.charged()[WAITED] == 7 * MS
    assert [i.ns for i in loop.given if i.phase == WAITED][1] == 0
    assert nonzero(loop.charged()) == nonzero(loop.expected())


def test_a_wait_without_its_own_boundary_is_not_measured():
    loop = Loop()
    loop.mark(0)
    loop.stream.capturing = True
    loop.wait_until(1, MS)
    loop.stream.capturing = False
    loop.stream.launch(MS)
    loop.mark(1)
    loop.settle()
    assert loop.charged()[WAITED] == loop.charged()[1] == 0
    assert loop.charged()[UNMEASURED] > 0
    assert loop.clock.unmeasured == 2


def test_parts_are_scaled_to_the_device_interval():
    loop = Loop()
    loop.mark(0)
    loop.stream.launch(10 * MS, cost_ns=0)
    loop.mark(1)
    loop.stream.host(20 * MS - RECORD_COST_NS)
    loop.mark(2, parts=((5, 10 * MS), (6, 4 * MS), (7, -1)))
    loop.settle()
    interval = next(i for i in loop.given if i.phase == 2)
    # 20 ms of host time, during 10 of which the device was idle (and the microsecond of the mark).
    assert interval.parts is not None
    causes = [cause for cause, _ in interval.parts]
    shares = [ns / interval.ns for _, ns in interval.parts[:-1]]
    assert causes == [5, 6, 7]
    assert shares == pytest.approx([0.5, 0.2], rel=1e-3)
    assert interval.parts[-1] == (7, -1)
    assert 9 * MS < interval.ns < 11 * MS


@given(
    st.lists(st.tuples(st.integers(0, 16), st.integers(0, 1 << 40)), max_size=4),
    st.integers(0, 1 << 40),
    st.integers(-5, 1 << 40),
)
def test_scaled_parts_never_exceed_the_interval(parts, ns, host_ns):
    scaled = device_clock._scaled((*parts, (3, -1)), ns, host_ns)
    assert scaled[-1] == (3, -1)
    assert all(part >= 0 for _, part in scaled[:-1])
    assert sum(part for _, part in scaled[:-1]) <= ns


def test_actions_of_lost_boundaries_run_in_order_and_near_their_time():
    loop = Loop()
    loop.mark(0)
    loop.stream.capturing = True
    loop.stream.host(MS)
    loop.mark(0, then=WINDOW)
    opened = loop.stream.marks[-1]
    loop.stream.host(MS)
    loop.mark(1, then=STEP)
    stepped = loop.stream.marks[-1]
    loop.stream.capturing = False
    loop.stream.host(MS)
    loop.mark(1, then=STEP)
    loop.settle()
    happened = [(i.then, i.end_ns) for i in loop.given if i.then]
    assert happened == [(WINDOW, opened), (STEP, stepped), (STEP, loop.stream.marks[-1])]
    assert loop.charged()[1] == 0
    assert loop.clock.unmeasured == 2


@given(PROGRAM)
def test_close_with_work_in_flight_leaves_the_rest_unmeasured(program):
    loop = Loop()
    loop.mark(0)
    run(loop, program)
    loop.stream.launch(50 * MS)
    loop.mark(1, then=STEP)
    loop.stream.launch(50 * MS)
    loop.mark(2)
    loop.clock.close(loop.stream.now(), wait_ns=20 * US)
    in_flight = loop.clock.unmeasured
    assert in_flight >= 2
    assert loop.given[-1].phase == UNMEASURED
    assert loop.clock.last_ns >= loop.stream.marks[-1]
    assert [i.then for i in loop.given if i.then] == [t for t in loop.thens if t]
    loop.check_sum()
    count = len(loop.given)
    loop.clock.mark(loop.stream.now(), 1)  # late hooks harm nothing
    loop.clock.harvest(loop.stream.now())
    loop.clock.close(loop.stream.now())
    assert len(loop.given) == count


def test_close_waits_briefly_for_the_last_boundary():
    loop = Loop()
    loop.mark(0)
    loop.stream.launch(20 * US, cost_ns=0)
    loop.mark(1)
    loop.clock.close(loop.stream.now())
    assert loop.clock.unmeasured == 0
    assert loop.charged()[1] > 0


@given(PROGRAM_WITH_CAPTURES, st.integers(0, 120), DEPTHS)
def test_errors_of_the_event_source_are_not_raised(program, fail_after, depth):
    loop = Loop(depth=depth, fail_after=fail_after)
    loop.mark(0)
    run(loop, program)
    loop.mark(1, then=STEP)
    loop.stream.host(MS)
    loop.mark(2)
    loop.settle()
    assert loop.clock.faults == (1 if loop.clock.dead else 0)
    assert loop.clock.dead == (loop.stream.calls > fail_after)
    assert [i.then for i in loop.given if i.then] == [t for t in loop.thens if t]
    assert loop.clock.last_ns >= loop.stream.marks[-1]
    loop.check_sum()


def test_a_dead_clock_charges_host_time_as_unmeasured():
    loop = Loop(fail_after=0)
    loop.stream.host(MS)
    loop.mark(1)
    loop.stream.host(2 * MS)
    loop.mark(2, then=STEP)
    assert loop.clock.dead
    assert loop.clock.unmeasured == 2
    assert [i.phase for i in loop.given] == [UNMEASURED, UNMEASURED]
    assert loop.clock.last_ns == loop.stream.marks[-1]


def test_a_hung_device_keeps_the_host_free_and_its_boundaries_few():
    loop = Loop(ring=64)
    loop.mark(0)
    loop.harvest()
    loop.stream.stuck = True
    for number in range(5_000):
        loop.stream.host(MS)
        loop.mark(number % 3)
        loop.harvest()
    assert len(loop.clock._pending) <= 64
    assert loop.clock._lost is not None
    assert not loop.clock._lost.thens
    loop.clock.close(loop.stream.now(), wait_ns=20 * US)
    assert loop.clock.last_ns >= loop.stream.marks[-1]
    loop.check_sum()


def test_a_loop_without_harvests_does_not_exhaust_the_ring():
    loop = Loop()
    loop.mark(0)
    for number in range(5_000):
        loop.stream.launch(3 * US)
        loop.mark(number % 2)
    ahead = sum(boundary.event.passed_ns > loop.stream.now() for boundary in loop.clock._pending)
    assert loop.clock.unmeasured == 0
    assert loop.stream.free >= 1024 - ahead - device_clock.BACKLOG - 1


def test_work_of_one_harvest_is_bounded():
    loop = Loop()
    for number in range(200):
        loop.mark(number % 2)
    loop.stream.synchronize()
    loop.harvest()
    loop.harvest()
    calls = loop.stream.calls
    loop.harvest()
    assert loop.stream.calls == calls  # all have a phase


@pytest.mark.parametrize("done", [0, 1, 7, 300, 500])
def test_a_harvest_asks_little_of_a_device_that_is_far_behind(done):
    loop = Loop()
    loop.mark(0)
    loop.harvest()
    loop.clock._look_ns = 1 << 62
    for _ in range(500):
        loop.stream.launch(MS, cost_ns=0)
        loop.mark(1)
    loop.stream.now_ns = loop.stream.start_ns + done * MS + MS // 2
    calls, given = loop.stream.calls, len(loop.given)
    loop.harvest()
    charged = len(loop.given) - given
    assert charged == done
    assert loop.stream.calls - calls - charged <= 18  # the number of queries; the other numbers are times


@pytest.mark.parametrize("boundaries", [1, 4, 10])
def test_a_device_that_never_drains_is_behind_by_at_most_one_interval(boundaries):
    """The host has five steps of work queued from the start, and then a full launch queue."""
    loop = Loop(depth=25)
    loop.stream.launch(500 * MS)
    length = 100 * MS // boundaries
    behind: list[int] = []
    for _ in range(40):
        for _ in range(boundaries):
            for _ in range(3):
                loop.stream.launch(length // 3, cost_ns=20 * US)
            loop.mark(1)
            if loop.given:
                behind.append(loop.stream.events[len(loop.given) - 1].passed_ns - loop.given[-1].end_ns)
        loop.harvest()
    # It is not known when the first batch was passed. What came after it was seen unfinished then.
    assert 0 <= max(behind[5:]) <= length


def test_events_that_cannot_be_compared_start_a_new_anchor():
    loop = Loop()
    loop.mark(0)
    elapsed = loop.clock._anchor._elapsed
    loop.stream.host(MS)
    loop.mark(1)
    loop.clock._anchor._elapsed = lambda start, end: None
    loop.harvest()
    loop.clock._anchor._elapsed = elapsed
    loop.stream.host(MS)
    loop.mark(2)
    loop.settle()
    assert nonzero(loop.charged()) == nonzero(loop.expected())
    assert loop.stream.free == loop.stream.ring - 1  # only the anchor is kept
    loop.check_sum()


def test_work_seen_unfinished_is_not_charged_before_that_moment():
    loop = Loop()
    loop.stream.launch(10 * MS)
    loop.mark(0)  # after work of unknown length
    loop.stream.host(9 * MS)
    seen_unfinished = loop.stream.now()
    loop.harvest()
    loop.stream.host(2 * MS)
    loop.harvest()
    assert seen_unfinished <= loop.given[0].end_ns <= loop.stream.drained_ns


def test_boundaries_on_another_stream_do_not_run_backwards():
    loop = Loop()
    loop.mark(0)
    loop.stream.launch(10 * MS)
    loop.mark(1)
    loop.stream.host(MS)
    loop.mark(2)
    loop.clock._pending[-1].event.passed_ns = loop.stream.marks[-1]  # its stream had no work
    loop.settle()
    assert loop.charged()[2] == 0
    loop.check_sum()


def test_the_simulators_truth_on_a_schedule_worked_by_hand():
    stream = SimStream(now_ns=0)
    stream.host(10 * US)
    stream.boundary()  # interval 0: 10 us of idle
    stream.launch(40 * US, cost_ns=5 * US)  # 10 .. 50
    stream.boundary()
    stream.host(60 * US)  # 15 .. 75: idle from 50 on
    stream.boundary()
    stream.launch(20 * US, cost_ns=0)  # 75 .. 95
    stream.wait_for(100 * US)  # blocked 95 .. 100
    stream.boundary()
    stream.host(30 * US)  # 75 .. 105
    assert stream.truth(105 * US) == [10 * US, 40 * US, 25 * US, 25 * US, 5 * US]
    assert QUERY_COST_NS > 0


NO_DEVICE = """
import torch
from whyidle.torch_hooks.accelerators import device_in_use
assert device_in_use() is None
assert device_in_use(torch.device("cpu")) is None
assert not torch.cuda.is_initialized()
"""


def test_looking_for_a_device_does_not_initialise_one():
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", NO_DEVICE], check=True)


@pytest.mark.parametrize(
    ("launches", "cost", "behind", "transfer", "waited"),
    [
        # DDP copies 161 gradients back, on GPUs whose host needs 335 us for each launch: nobody waits.
        (161, 335 * US, 0, 0, 0),
        (161, 2 * US, 0, 0, 161 * US),
        # The device is behind the host, so it does not notice how long the launches take.
        (161, 20 * US, 50 * MS, 0, 161 * 3 * US),
        # Exposed communication is still a wait, also behind the host's own work.
        (161, 20 * US, 0, 30 * MS, 30 * MS - 161 * 20 * US + 161 * 3 * US),
        (0, 0, 0, 30 * MS, 30 * MS),
    ],
)
def test_a_wait_excludes_the_work_of_the_host_in_it(launches, cost, behind, transfer, waited):
    loop = Loop()
    loop.mark(0)
    for _ in range(10):
        loop.stream.launch(behind)
        loop.mark(0)
        begun = loop.stream.now()
        loop.stream.wait_for(begun + transfer)
        for _ in range(launches):
            loop.stream.launch(3 * US, cost)
        loop.mark(WAITED, Launched(loop.stream.now(), 0))
        loop.stream.synchronize()
        loop.mark(0, then=STEP)
    loop.settle()
    assert loop.charged()[WAITED] == pytest.approx(10 * waited, abs=10 * 30 * US)
    loop.check_sum()


@pytest.mark.parametrize(
    ("ends_after", "host", "blocked", "waited"),
    [
        (30 * MS, 35 * MS, 30 * MS, 30 * MS - 2 * MS),  # `.item()`: the device had work for 2 ms of it
        (30 * MS, 35 * MS, 0, 0),  # the host went on
        (80 * MS, 35 * MS, 30 * MS, 0),  # the host was blocked by something else
        (1 * MS, 35 * MS, 30 * MS, 0),  # hidden by the work of the home stream
    ],
)
def test_a_wait_of_another_stream_counts_if_the_host_is_blocked_by_it(ends_after, host, blocked, waited):
    loop = Loop()
    loop.mark(0)
    for _ in range(10):
        loop.stream.launch(2 * MS)
        loop.mark(0)
        ends = SimEvent(loop.stream.now() + ends_after)
        loop.stream.host(host)
        loop.mark(0, SideWait(WAITED, ends, blocked, None))
        loop.stream.launch(5 * MS)
        loop.stream.synchronize()
        loop.mark(0, then=STEP)
    loop.settle()
    assert loop.charged()[WAITED] == pytest.approx(10 * waited, abs=10 * 30 * US)
    assert [interval.phase for interval in loop.given].count(WAITED) == 10, "as often as on the other ranks"
    loop.check_sum()
