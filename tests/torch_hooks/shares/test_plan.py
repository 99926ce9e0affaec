"""Which rank gets how many units: single decisions, and 1,000 random fleets of ranks that follow them."""

from __future__ import annotations

import random
from itertools import pairwise, product
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.torch_hooks.shares.meter import pace_of
from whyidle.torch_hooks.shares.plan import EQUAL, LEAST, MOST, Pace, Plan, counts_of, decide, equal_counts, step_ns

# -- counts


@given(total=st.integers(0, 300), paces=st.lists(st.integers(1, 10**12), min_size=1, max_size=40))
def test_counts_add_up_and_stay_within_bounds(total: int, paces: list[int]) -> None:
    counts = counts_of(total, len(paces), paces)
    assert sum(counts) == total
    if total >= len(paces):
        each = total / len(paces)
        assert min(counts) >= max(1, int(LEAST * each))
        assert max(counts) <= max(MOST * each, each + 1)


@given(total=st.integers(3, 9), paces=st.lists(st.integers(1, 50), min_size=3, max_size=3))
def test_no_other_counts_finish_sooner(total: int, paces: list[int]) -> None:
    counts = counts_of(total, 3, paces)
    least, most = max(1, int(LEAST * total / 3)), max(int(MOST * total / 3), -(-total // 3))
    others = [one for one in product(range(least, most + 1), repeat=3) if sum(one) == total]
    assert step_ns(counts, paces) == min(step_ns(one, paces) for one in others)


@pytest.mark.parametrize(
    ("total", "paces", "counts"),
    [
        (32, (100, 100, 100, 150), (9, 9, 9, 5)),
        (6, (1, 1, 1, 1), (2, 2, 1, 1)),
        (3, (1, 9, 1, 1), (1, 1, 1, 0)),  # fewer units than ranks: as equal as they can be
        (16, (10, 10, 10, 1000), (5, 5, 4, 2)),  # at most half of an equal share is taken away
    ],
)
def test_counts(total: int, paces: tuple[int, ...], counts: tuple[int, ...]) -> None:
    assert counts_of(total, len(paces), paces) == counts


def test_equal_counts_differ_by_at_most_one() -> None:
    assert equal_counts(10, 4) == (3, 3, 2, 2)


# -- decisions


def paces(*ns: int, error: int = 1) -> list[Pace]:
    return [Pace(one, error) for one in ns]


def test_a_change_needs_two_rounds() -> None:
    slow = paces(100, 100, 100, 150)
    once = decide(EQUAL, 32, slow)
    assert (once.paces, once.losing) == ((), {3})
    assert decide(once, 32, slow).paces == (100, 100, 100, 150)
    assert decide(once, 32, paces(150, 100, 100, 100)).paces == ()


@pytest.mark.parametrize(
    "measured",
    [
        paces(100, 100, 100, 103),  # less than the least gain
        paces(100, 100, 100, 120, error=8),  # within the noise
        paces(100, 100, 0, 150),  # a rank was not measured
    ],
)
def test_shares_stay_equal_if_in_doubt(measured: list[Pace]) -> None:
    assert decide(decide(EQUAL, 64, measured), 64, measured) == EQUAL


def test_shares_become_equal_again_after_a_recovery() -> None:
    plan = Plan((100, 100, 100, 150))
    healthy = paces(100, 100, 100, 100)
    once = decide(plan, 32, healthy)
    assert once.paces == plan.paces
    assert decide(once, 32, healthy) == EQUAL


def test_a_plan_stays_while_it_helps() -> None:
    plan = Plan((100, 100, 100, 150))
    assert decide(plan, 32, paces(101, 99, 100, 149)) == plan


# -- fleets

ROUNDS, STEPS = 10, 12


class Fleet(NamedTuple):
    """``paces``: the time of each rank per unit. A step costs ``fixed`` units more. ``noise``: of a step's time."""

    total: int
    paces: list[float]
    fixed: float
    noise: float

    def step(self, counts: tuple[int, ...]) -> float:
        return step_ns([count + self.fixed for count in counts], self.paces)

    def measured(self, counts: tuple[int, ...], chance: random.Random) -> list[Pace]:
        found = []
        for count, pace in zip(counts, self.paces, strict=True):
            took = pace * (count + self.fixed) / count
            one = pace_of([took * max(0.1, chance.gauss(1.0, self.noise)) for _ in range(STEPS)])
            assert one is not None
            found.append(one)
        return found


def fleet(chance: random.Random, slow: float) -> Fleet:
    """A fleet with one rank that is ``slow`` times as slow as the others."""
    ranks = chance.randint(2, 8)
    paces = [1e6 * chance.uniform(0.995, 1.005) for _ in range(ranks)]
    paces[chance.randrange(ranks)] *= slow
    each = chance.randint(8, 32)
    return Fleet(each * ranks, paces, chance.uniform(0, 0.15) * each, chance.uniform(0, 0.08))


def followed(fleet: Fleet, chance: random.Random, plan: Plan = EQUAL) -> list[tuple[int, ...]]:
    """The counts of each round, from the plan with which it begins."""
    history = []
    for _ in range(ROUNDS):
        counts = counts_of(fleet.total, len(fleet.paces), plan.paces)
        history.append(counts)
        plan = decide(plan, fleet.total, fleet.measured(counts, chance))
    return history


def test_1000_fleets_with_a_slow_rank_recover_and_come_to_rest() -> None:
    recovered, changes = [], []
    for seed in range(1000):
        chance = random.Random(seed)
        slow = fleet(chance, 1.5)
        history = followed(slow, chance)
        ranks = len(slow.paces)
        before, after = slow.step(equal_counts(slow.total, ranks)), slow.step(history[-1])
        # The least that any shares could reach, if units could be divided.
        ideal = (slow.total + ranks * slow.fixed) / sum(1 / pace for pace in slow.paces)
        recovered.append((before - after) / (before - ideal))
        changes.append(sum(one != other for one, other in pairwise(history)))
        assert all(sum(counts) == slow.total for counts in history)
        assert slow.step(history[-1]) <= before
    recovered.sort()
    assert recovered[50] >= 0.7  # 95 % of the fleets
    assert recovered[500] >= 0.85
    assert max(changes) <= 4
    assert sum(changes) / 1000 <= 2


def test_1000_healthy_fleets_lose_less_than_two_percent() -> None:
    worst, changed = 0.0, 0
    for seed in range(1000):
        chance = random.Random(seed)
        healthy = fleet(chance, 1.0)
        history = followed(healthy, chance)
        equal = healthy.step(history[0])
        worst = max(worst, sum(map(healthy.step, history)) / (equal * ROUNDS) - 1)
        changed += len(set(history)) > 1
    assert worst <= 0.02
    assert changed <= 10


def test_1000_fleets_return_to_equal_shares_when_the_slow_rank_has_recovered() -> None:
    ended = []
    for seed in range(1000):
        chance = random.Random(seed)
        slow = fleet(chance, 1.5)
        healthy = slow._replace(paces=[min(slow.paces)] * len(slow.paces))
        # The paces as they were measured while it was slow.
        history = followed(healthy, chance, Plan(tuple(map(int, slow.paces))))
        equal = healthy.step(equal_counts(healthy.total, len(healthy.paces)))
        ended.append(healthy.step(history[-1]) / equal)
    assert max(ended) <= 1.02
    assert ended.count(1.0) >= 990
