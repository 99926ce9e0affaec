"""What background work costs is said only where it is known."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from support_background import Stretches, Work
from support_ledgers import Spec, write

from whyidle.ledger.background import LAST, Comparison
from whyidle.ledger.beside import Block, Pairings
from whyidle.ledger.reader import Ledger, parse_ledger
from whyidle.verdict import background

MS = 1_000_000


def ledger_with(tmp_path: Path, stretches: Stretches, label: str = "thread saver") -> Ledger:
    """A ledger of 100 steps of 0.1 s each, with one work beside some of them."""
    spec = Spec(world_size=1, steps=100, step={"compute": 0.1}, backgrounds=[Work(label, stretches)])
    writer = write(str(tmp_path), spec)
    raw = writer.copy()
    writer.close()
    return parse_ledger(raw, writer.path, alive=False)


EVEN: Stretches = [(10, 50, 2), (12, 52, -1), (9, 47, 3), (11, 51, -2), (10, 49, 1), (10, 50, 0)]


def test_the_cost_is_the_mean_of_the_stretches() -> None:
    mean, error = background.estimate(
        [Comparison(steps, round(ms * MS), round(drift * MS)) for steps, ms, drift in EVEN]
    )
    assert mean == pytest.approx(50 * MS, rel=0.02)
    assert 0 < error < 2 * MS


def test_one_stretch_that_differs_from_all_others_changes_the_mean_little() -> None:
    odd: Stretches = [*EVEN, (10, 2000, 0)]
    mean, _ = background.estimate([Comparison(steps, round(ms * MS), round(drift * MS)) for steps, ms, drift in odd])
    assert mean == pytest.approx(51 * MS, rel=0.03)


def test_the_error_is_at_least_what_the_steps_around_differ_by() -> None:
    last = [Comparison(10, 50 * MS, sign * 40 * MS) for sign in (1, -1, 1, -1)]
    _, error = background.estimate(last)
    assert error == pytest.approx((0.75 * 4) ** 0.5 / 4 * 40 * MS)


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_is_never_a_cost(seed: int) -> None:
    random = Random(seed)
    found = 0
    for _ in range(100):
        count = random.randrange(3, LAST + 1)
        last = [Comparison(10, round(random.gauss(0, 20 * MS)), round(random.gauss(0, 20 * MS))) for _ in range(count)]
        mean, error = background.estimate(last)
        found += mean > background.needed(count) * error
    assert found <= 1


def test_says_what_a_thread_costs_and_what_both_need(tmp_path: Path) -> None:
    (entry,) = background.entries([ledger_with(tmp_path, [(5, 25, 0), (4, 26, 1), (6, 24, -1), (5, 25, 0)])])
    assert entry["sure"]
    assert (entry["kind"], entry["name"], entry["part"]) == ("thread", "saver", "lock")
    assert entry["share"] == pytest.approx(20 * 0.025 / 10, rel=0.02)
    assert entry["sentence"] == (
        "the thread saver costs 25 % of the time of the 20 steps beside it: 5.0 % of the run (rank 0). "
        "Both need Python's lock."
    )


@pytest.mark.parametrize(
    "stretches",
    [
        [(20, 25, 0), (20, 25, 0)],
        [(10, 25, 0), (10, -20, 0), (10, 30, 0), (10, 5, 0)],
        [(10, 25, 40), (10, 25, -40), (10, 25, 30), (10, 25, -30)],
        [(10, 1, 0)] * 8,
        [(10, -25, 0)] * 8,
    ],
    ids=["two stretches", "different costs", "steps around that differ", "too little", "quicker beside it"],
)
def test_says_nothing_where_it_may_be_chance(stretches: Stretches, tmp_path: Path) -> None:
    (entry,) = background.entries([ledger_with(tmp_path, stretches)])
    assert not entry["sure"]
    assert entry["sentence"] == ""


def test_only_the_last_stretches_are_known_one_by_one_but_all_steps_count(tmp_path: Path) -> None:
    (entry,) = background.entries([ledger_with(tmp_path, [(1, 25, 0.1 * (number % 3)) for number in range(3 * LAST)])])
    assert entry["sure"]
    assert entry["steps"] == 3 * LAST
    assert entry["share"] == pytest.approx(3 * LAST * 0.025 / 10)


def test_a_work_of_a_kind_that_is_not_known_is_ignored(tmp_path: Path) -> None:
    assert background.entries([ledger_with(tmp_path, [(10, 25, 0)] * 4, label="spirit level")]) == []


def test_the_rank_that_loses_most_is_the_one_that_is_named(tmp_path: Path) -> None:
    ledgers = []
    for rank, ms in enumerate((25, 35)):
        work = Work("save", [(5, ms, 0), (5, ms + 1, 0), (5, ms - 1, 0), (5, ms, 0)])
        writer = write(str(tmp_path), Spec(rank=rank, steps=100, step={"compute": 0.1}, backgrounds=[work]))
        ledgers.append(parse_ledger(writer.copy(), writer.path, alive=False))
        writer.close()
    assert [entry["rank"] for entry in background.entries(ledgers) if entry["sentence"]] == [1]


def simulated(seed: int, longer: float) -> tuple[float, float, bool]:
    """(true share, share, whether it is sure) of a work that makes steps longer by this part, in a run of 140 blocks.

    Step times vary by a tenth, slowly and quickly, and now and then a block takes half as long again.
    """
    random, pairings, stretches = Random(seed), Pairings(), []
    period, lasts, level, lost, whole = random.randrange(8, 16), random.randrange(2, 5), 0.0, 0.0, 0.0
    for number in range(140):
        level = 0.8 * level + random.gauss(0, 0.06)
        usual = 500 * MS * max(0.2, 1 + level + random.gauss(0, 0.05) + 0.5 * (random.random() < 0.03))
        works = {"thread saver": 0.9} if number > 3 and number % period < lasts else {}
        ns = round(usual * (1 + longer)) if works else round(usual)
        lost, whole = lost + ns - usual, whole + ns
        stretches += pairings.add(Block(10, ns, (0, 0, ns, 0, 0, 0, 0), works))
    stretches += pairings.finish()
    compared = [
        Comparison(one.steps, round(sum(one.excess_ns) / one.steps), round(one.drift_ns))
        for one in stretches
        if one.excess_ns is not None
    ]
    mean, error = background.estimate(compared[-LAST:])
    sure = mean > background.needed(len(compared[-LAST:])) * error
    return lost / whole, mean * sum(one.steps for one in stretches) / whole, sure


def test_nothing_is_found_in_a_hundred_runs_in_which_the_work_costs_nothing() -> None:
    assert not any(sure for _, _, sure in (simulated(seed, 0.0) for seed in range(100)))


@pytest.mark.parametrize("longer", [0.3, 1.0])
def test_a_cost_is_found_and_right_within_three_points(longer: float) -> None:
    found = [simulated(seed, longer) for seed in range(60)]
    assert sum(abs(share - truth) < 0.03 for truth, share, _ in found) >= 58
    assert sum(sure for *_, sure in found) >= 54
