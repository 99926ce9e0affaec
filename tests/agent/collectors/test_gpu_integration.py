"""The arithmetic of GPU activity: between two samples nothing is missed, counted twice or invented."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whyidle.agent.collectors.gpu.idle_difference import ENDED_SECONDS, STEADY_SECONDS, ActivityPoints, ComputeIdle
from whyidle.agent.collectors.gpu.utilisation import Increase, SampleIntegral, split_unhooked
from whyidle.ledger.causes import CAUSES

PERIOD_US = 200_000
BUFFER = 100
START_US = 1_700_000_000_000_000


class Driver:
    """A GPU that takes a sample each period, and a driver that keeps the last samples."""

    def __init__(self, levels: list[int]):
        self.samples = [(START_US + (at + 1) * PERIOD_US, level) for at, level in enumerate(levels)]

    def after(self, seen_us: int, now: int) -> list[tuple[int, float]]:
        """The samples at the time of sample number ``now``."""
        return [sample for sample in self.samples[max(0, now - BUFFER) : now] if sample[0] > seen_us]


levels = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 60)), min_size=1, max_size=20).map(
    lambda runs: [level for level, length in runs for _ in range(length)]
)


@given(levels, st.lists(st.integers(1, BUFFER - 1), min_size=1, max_size=60))
def test_scrapes_at_any_time_see_every_sample_once(trace: list[int], pauses: list[int]) -> None:
    driver, integral = Driver(trace), SampleIntegral()
    integral.add(driver.after(0, 1))
    now, busy, observed = 1, 0.0, 0.0
    for pause in pauses:
        now = min(len(trace), now + pause)
        increase = integral.add(driver.after(integral.seen_us, now))
        busy += increase.busy
        observed += increase.observed
        again = integral.add(driver.after(0, now))  # the driver returns the same samples again
        assert (again.busy, again.observed) == (0, 0)
    assert observed == pytest.approx((now - 1) * PERIOD_US / 1e6)
    assert busy == pytest.approx(sum(trace[1:now]) * PERIOD_US / 1e8)


@given(st.integers(0, 100), st.integers(BUFFER + 2, 10 * BUFFER))
def test_samples_lost_by_the_buffer_are_not_observed_time(level: int, gap: int) -> None:
    driver, integral = Driver([level] * (gap + 10)), SampleIntegral()
    integral.add(driver.after(0, 5))
    increase = integral.add(driver.after(integral.seen_us, gap + 5))
    assert increase.observed == pytest.approx(BUFFER * PERIOD_US / 1e6)
    assert increase.busy == pytest.approx(increase.observed * level / 100)


def test_a_slightly_late_sample_counts_for_all_of_its_time() -> None:
    integral = SampleIntegral()
    integral.add([(START_US + at * PERIOD_US, 50) for at in range(10)])
    increase = integral.add([(integral.seen_us + int(1.8 * PERIOD_US), 100)])
    assert increase.observed == pytest.approx(0.36)
    assert increase.busy == pytest.approx(0.36)


def test_continues_at_the_next_sample_after_the_clock_was_set_back() -> None:
    integral = SampleIntegral()
    integral.add([(START_US + PERIOD_US * at, 100) for at in range(5)])
    integral.forget_time()
    assert integral.add([(PERIOD_US * at, 100) for at in range(1, 4)]).busy == 0
    assert integral.add([(PERIOD_US * 4, 100)]).busy == pytest.approx(0.2)


times = st.integers(0, 1 << 63)
values = st.one_of(st.integers(0, 1 << 64), st.floats())


@given(st.lists(st.lists(st.tuples(times, values), max_size=20), max_size=10))
def test_observed_time_never_exceeds_elapsed_time(batches: list[list[tuple[int, float]]]) -> None:
    integral = SampleIntegral()
    for batch in batches:
        before = integral.seen_us
        increase = integral.add(batch)
        span = (integral.seen_us - before) / 1e6 if before else 0.0
        assert 0 <= increase.busy <= increase.observed * (1 + 1e-9)
        assert increase.observed <= span * (1 + 1e-9)
        assert math.isfinite(increase.busy)


@pytest.mark.parametrize(
    ("increase", "occupied", "interval", "split"),
    [
        (Increase(3.0, 10.0), True, 10.0, (3.0, 7.0, 0.0)),
        (Increase(3.0, 4.0), True, 10.0, (3.0, 1.0, 0.0)),  # 6 s without samples belong to nobody
        (Increase(0.0, 10.0), False, 10.0, (0.0, 0.0, 10.0)),
        (Increase(0.5, 10.0), False, 10.0, (0.5, 9.5, 0.0)),  # the process that worked has ended: the GPU was not empty
        (Increase(), True, 10.0, (0.0, 0.0, 0.0)),
        (Increase(), False, 300.0, (0.0, 0.0, 0.0)),  # not known
    ],
)
def test_charges_seconds_without_a_ledger(
    increase: Increase, occupied: bool, interval: float, split: tuple[float, float, float]
) -> None:
    assert split_unhooked(interval, increase, occupied=occupied, longest=60.0) == split


def _causes(**seconds: float) -> list[float]:
    return [seconds.get(cause, 0.0) for cause in CAUSES]


@settings(max_examples=60)
@given(
    gaps=st.floats(0.0, 0.6),
    data=st.floats(0.0, 0.3),
    lag=st.floats(0.0, 20.0),
    looks=st.lists(st.floats(1.0, 15.0), min_size=60, max_size=120),
)
def test_idle_compute_is_found_within_a_few_seconds_however_late_the_ledger_is(
    gaps: float, data: float, lag: float, looks: list[float]
) -> None:
    """In each second the GPU is idle for ``data`` in the loader, and for ``gaps`` of the rest between kernels."""
    points, counter, now, before = ActivityPoints(), ComputeIdle(), 1000.0, 0.0
    points.add(now, 0.0, 0.0)
    for pause in looks:
        now += pause
        idle = data + (1 - data) * gaps
        points.add(now, pause * (1 - idle), pause)
        until = max(0.0, now - lag)
        seconds = counter.add(until, _causes(data_read=until * data, compute=until * (1 - data)), points)
        assert seconds >= before
        before = seconds
    truth = (now - 1000.0) * (1 - data) * gaps
    assert before <= truth + 1e-6
    assert before >= truth - (STEADY_SECONDS + lag + 3 * 15.0) * (1 - data) * gaps - 1e-6


@pytest.mark.parametrize("seconds", [45.0, 300.0])
def test_an_ended_rank_has_all_idle_compute_but_its_last_seconds(seconds: float) -> None:
    """Idle for 9 tenths of its compute, and sampled every 5 s."""
    points, counter, look = ActivityPoints(), ComputeIdle(), 5.0
    points.add(0.0, 0.0, 0.0)
    now = 0.0
    while now < seconds:
        now += look
        points.add(now, 0.1 * look, look)
        counter.add(now, _causes(compute=now), points)
    truth = 0.9 * seconds
    assert truth - 0.9 * (ENDED_SECONDS + look) <= counter.end() <= truth
    assert counter.end() == counter.end()


def test_an_ended_rank_that_was_never_read_has_no_idle_compute() -> None:
    assert ComputeIdle().end() == 0.0


def test_a_ledger_that_is_updated_rarely_gives_no_idle_compute() -> None:
    """Steps of 8 s that wait for data for 4 s and are recorded only at their ends. The GPU is sampled every 10 s."""
    points, counter = ActivityPoints(), ComputeIdle()
    points.add(0.0, 0.0, 0.0)

    def idle_until(moment: float) -> float:
        return moment // 8 * 4 + min(moment % 8, 4)

    for look in range(1, 200):
        now = look * 10.0
        idle = idle_until(now) - idle_until(now - 10.0)
        points.add(now, 10.0 - idle, 10.0)
        steps = now // 8
        seconds = counter.add(steps * 8, _causes(data_read=steps * 4, compute=steps * 4), points)
        assert seconds <= 2.0  # the error of the GPU's values between two samples; it does not grow


def test_time_that_was_not_observed_gives_no_idle_compute() -> None:
    points, counter = ActivityPoints(), ComputeIdle()
    points.add(0.0, 0.0, 0.0)
    for look in range(1, 100):
        points.add(look * 10.0, 0.0, 3.0)
        assert counter.add(look * 10.0, _causes(compute=look * 10.0), points) == 0
