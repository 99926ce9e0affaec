"""One thread runs all probes in rounds: which go on, which are switched off, and what stops the thread."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support_ledgers import until

from whyidle.torch_hooks.moments import Moments
from whyidle.torch_hooks.suspensions import Suspensions
from whyidle.torch_hooks.watcher import ALONE, BESIDE, DEVICE, SHARE, Budget, Probe, Watcher, scaled

Start = Callable[..., Watcher]
OFTEN = Budget(1.0, 1_000_000_000, 0.001, 0.002)


class Counting:
    """A probe that counts its runs, in the thread that makes them."""

    def __init__(self, name: str, error: Exception | None = None, cpu: float = 0.0):
        self.name, self.runs, self._error, self._cpu = name, 0, error, cpu
        self.expected: list[int] = []

    def __call__(self) -> None:
        self.runs += 1
        if self._error is not None:
            raise self._error
        end = time.thread_time() + self._cpu
        while time.thread_time() < end:
            pass

    def row(self, *, vital: bool = False, rest: float = 0.0) -> Probe:
        return Probe(self.name, self, rest, lambda due, _: self.expected.append(due), vital=vital)


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Watcher] = []

    def start(
        *probes: Probe,
        off: Callable[[str, Exception], object] = lambda *_: None,
        budget: Budget = OFTEN,
        early: Callable[[], bool] = lambda: False,
    ) -> Watcher:
        started.append(Watcher([*probes], "whyidle-test", off, budget, early=early))
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


def test_only_vital_probes_run_when_the_budget_is_used_up(start: Start) -> None:
    """A run takes 4 ms of CPU time, and the budget is 20 ms, and 0.05 % of a core."""
    dear, good = Counting("dear", cpu=0.004), Counting("good")
    start(dear.row(), good.row(vital=True), budget=Budget(0.0005, 20_000_000, 0.001, 0.002))
    until(lambda: good.runs > 100)
    assert 1 < dear.runs <= 9  # two are not counted


def test_vital_probes_that_use_up_the_budget_leave_the_others_their_turn(start: Start) -> None:
    """A round takes 1 ms, and the budget is 1 ms in 50 ms: vital probes alone take ten times as much."""
    vital, other = Counting("stuck", cpu=0.001), Counting("looks")
    start(vital.row(vital=True), other.row(), budget=Budget(0.02, 0, 0.001, 0.005))
    until(lambda: other.runs > 5)
    assert other.runs < vital.runs


def test_the_first_rounds_are_not_counted(start: Start) -> None:
    """Imports take 10 ms there. The credit is for looks."""
    probe = Counting("probe", cpu=0.004)
    watcher = start(probe.row(), budget=Budget(1.0, 0, 0.001, 60.0))
    until(lambda: probe.runs > 4)
    watcher.stop(wait=5)
    assert len(watcher._costs) == watcher._rounds - 2
    assert sum(watcher._costs) == watcher._spent_ns


def test_a_watcher_without_vital_probes_does_not_wake_for_nothing(start: Start) -> None:
    """To wake it each second takes as much as the looks that it may make."""
    probe = Counting("probe")
    watcher = start(probe.row(), budget=Budget(0.0003, 0, 0.2, 1.0))
    watcher.stop()
    now = watcher._begun_ns + 10**9
    watcher._seen_ns, watcher._cost_ns, watcher._spent_ns = watcher._begun_ns, 900_000, 3_000_000
    assert watcher._period(now) == pytest.approx(3.0)
    before = probe.runs
    assert watcher._round(now)
    assert probe.runs == before + 1, "it is awake"


def test_before_the_first_step_most_rounds_have_only_vital_probes(start: Start) -> None:
    """So a rank that is killed soon after its first steps has these in its ledger, and the credit is kept for them."""
    vital, other, steps = Counting("flush"), Counting("frames"), []
    start(vital.row(vital=True), other.row(), budget=Budget(1.0, 10**9, 0.001, 60.0), early=lambda: not steps)
    until(lambda: vital.runs > 5)
    assert other.runs == 1
    steps.append(1)
    until(lambda: other.runs > 10)


def test_the_period_follows_the_cost(start: Start) -> None:
    """Rounds of 2 ms fit five times a second into one percent of a core."""
    probe = Counting("probe", cpu=0.002)
    watcher = start(probe.row(), budget=Budget(0.01, 0, 0.001, 60.0))
    until(lambda: probe.runs > 5)
    spent, seconds = watcher._spent_ns, (time.monotonic_ns() - watcher._begun_ns) / 1e9
    assert spent <= 0.01e9 * seconds + 3 * 2e6, "the first rounds are taken to be cheaper"
    assert watcher._period(time.monotonic_ns()) > 0.001


@pytest.mark.parametrize(("cost_ms", "like"), [(0.35, 58), (0.7, 27), (1.5, 12), (2.5, 7)])
def test_the_credit_is_spread(cost_ms: float, like: float, start: Start) -> None:
    """So what looks find does not stand for the first steps, also if a look costs much. ``like``: as many looks at
    equal distances would be as sure."""
    watcher = start(budget=ALONE)
    watcher.stop()
    now = begun = watcher._seen_ns = watcher._begun_ns = 10**9
    watcher._cost_ns = cost = round(cost_ms * 1e6)
    watcher._spent_ns, periods = 9_000_000, []
    while now < begun + 20 * 10**9:
        periods.append(watcher._period(now))
        now += round(1e9 * periods[-1])
        watcher._spent_ns += cost
    assert watcher._spent_ns <= ALONE.credit_ns + ALONE.share * (now - begun) + cost
    assert sum(periods) ** 2 / sum(period**2 for period in periods) >= like
    assert max(periods) <= max(4.0, cost / ALONE.share / 1e9)


def test_rounds_do_not_become_rarer_than_the_share_pays_for(start: Start) -> None:
    watcher = start(Counting("probe").row(), budget=Budget(0.1, 10**9, 0.25, 60.0))
    watcher.stop()
    now = time.monotonic_ns()
    watcher._seen_ns, watcher._spent_ns = now - 30 * 10**9, 0
    periods = []
    for watcher._cost_ns in (10**6, 10**8, 10**9):
        periods.append(watcher._period(now))
    assert periods == pytest.approx([0.25, 1.0, 10.0])


def test_between_two_rounds_are_brief_ones(start: Start) -> None:
    ran: list[str] = []
    probe = Probe("probe", lambda: ran.append("whole"), brief=lambda: ran.append("brief"))
    other = Counting("other")
    start(probe, other.row(), budget=OFTEN._replace(briefs=3))
    assert until(lambda: len(ran) >= 13)
    assert ran[:13] == ["whole", "brief", "brief", "brief"] * 3 + ["whole"]
    assert other.runs <= ran.count("whole")


def test_brief_rounds_are_in_the_time_that_the_budget_allows_for_one(start: Start) -> None:
    budget = Budget(0.001, 0, 0.01, 1.0)
    watchers = [start(Counting("probe").row(), budget=budget._replace(briefs=briefs)) for briefs in (0, 7)]
    for watcher in watchers:
        watcher.stop()
        watcher._begun_ns = watcher._seen_ns = 0
        watcher._spent_ns, watcher._cost_ns = 60_000_000, 4_000_000
    one, eighth = [watcher._period(60 * 10**9) for watcher in watchers]
    assert [one, eighth] == [4.0, 0.5]


def test_probes_rest_in_brief_rounds_too(start: Start) -> None:
    often, seldom = Counting("often"), Counting("seldom")
    rows = [Probe(one.name, one, rest, brief=one) for one, rest in ((often, 0.0), (seldom, 60.0))]
    start(*rows, budget=OFTEN._replace(briefs=3))
    assert until(lambda: often.runs >= 9)
    assert seldom.runs == 1


def test_a_brief_round_that_fails_switches_its_probe_off(start: Start) -> None:
    off: list[str] = []
    start(
        Probe("probe", lambda: None, brief=lambda: 1 / 0),
        budget=OFTEN._replace(briefs=1),
        off=lambda name, _: off.append(name),
    )
    assert until(lambda: off == ["probe"])


def test_a_probe_rests(start: Start) -> None:
    lazy, good = Counting("lazy"), Counting("good")
    start(lazy.row(rest=60.0), good.row())
    until(lambda: good.runs > 10)
    assert lazy.runs == 1


def test_a_probe_may_ask_for_a_separate_run(start: Start) -> None:
    second, other = Counting("second"), Counting("other")
    row = second.row()
    row.soon = lambda: 0.001 if second.runs in (1, 2) else 0.0
    start(row, other.row(), budget=Budget(1.0, 10**9, 0.5, 1.0))
    until(lambda: second.runs >= 3)
    assert other.runs == 1


def test_probes_know_when_the_next_round_is_due(start: Start) -> None:
    probe = Counting("probe")
    start(probe.row())
    until(lambda: probe.runs > 3)
    assert probe.expected == sorted(probe.expected)
    assert len(probe.expected) >= probe.runs


def test_calls_that_delay_rounds_do_not_set_their_times(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes 100 ms, and in the last 70 a call keeps Python's lock: rounds that are due there run at its end."""
    watcher = start()
    watcher.stop()
    monkeypatch.setattr(watcher, "_period", lambda _: 0.05)
    now, free, number, step, kept = 10**9, 0, 4000, 100_000_000, 30_000_000
    for _ in range(number):
        due, _ = watcher._next(now)
        assert due > now
        at = due % step
        free += at < kept
        now = due if at < kept else due - at + step
    # In a step, the call has one round, and the rest has 30 of 50 ms of one.
    assert free / number == pytest.approx(0.6 / 1.6, abs=0.05)


def test_forks_do_not_put_the_next_round_off(start: Start) -> None:
    """The thread is stopped and started again for each."""
    watcher = start()
    watcher.stop()
    now = time.monotonic_ns() + 10**10
    periods = [watcher._next(now) for _ in range(20)]
    assert len({due for due, _ in periods}) == 1
    assert [period > 0 for _, period in periods] == [True, *[False] * 19]


def test_there_is_one_round_in_each_period_at_a_random_time() -> None:
    state, moments, period = random.getstate(), Moments(), 0.25
    pauses = [moments.pause(period) for _ in range(1000)]
    assert random.getstate() == state, "the training may have seeded the global generator"
    ends = [sum(pauses[: number + 1]) / period for number in range(1000)]
    assert [int(end + 1e-9) for end in ends] == [*range(1000)]
    assert len({round(end % 1, 3) for end in ends}) > 300


def test_the_budgets_are_a_thousandth_of_a_core_in_runs_of_300_s() -> None:
    for budgets in ((ALONE,), (BESIDE, DEVICE)):
        first_rounds = 0.01 * len(budgets)
        assert (
            sum(budget.share * 300 + budget.credit_ns / 1e9 for budget in budgets) + first_rounds <= SHARE * 300 + 1e-9
        )


@pytest.mark.parametrize(
    ("text", "factor"), [("0.005", 5), ("0.0005", 0.5), ("much", 1), ("", 1), ("0", 1), ("-1", 1), ("nan", 1), ("7", 1)]
)
def test_the_share_of_a_core_can_be_set(text: str, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYIDLE_WATCHER_SHARE", text)
    found = scaled(ALONE)
    assert (found.share, found.credit_ns) == (pytest.approx(factor * ALONE.share), factor * ALONE.credit_ns)
    assert (found.least, found.most) == (ALONE.least, ALONE.most)


def test_a_stopped_watcher_runs_nothing_until_it_is_started_again(start: Start) -> None:
    probe = Counting("probe")
    watcher = start(probe.row())
    until(lambda: probe.runs)
    watcher.stop()
    assert not any(thread.name == "whyidle-test" for thread in threading.enumerate())
    runs = probe.runs
    watcher.start()
    until(lambda: probe.runs > runs)


def test_the_pieces_of_a_sleep_leave_the_budget_to_the_probes() -> None:
    """On busy cores, each piece costs more than the budget has for it."""

    class Dear(Suspensions):
        def wakes(self) -> None:
            end = time.thread_time_ns() + 2_000_000
            while time.thread_time_ns() < end:
                pass

    runs: list[int] = []
    probe = Probe("looks", lambda: runs.append(1))
    watcher = Watcher([probe], "test", budget=Budget(0.004, 0, 1.0, 1.0), suspensions=Dear(time.monotonic_ns))
    time.sleep(6)
    watcher.stop()
    assert len(runs) >= 3
