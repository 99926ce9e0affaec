"""What background work costs is said only where it is known."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from support_ledgers import Spec, write

from whyidle.ledger.background import BACKGROUND_LABELS, LAST, PARTS, Comparison
from whyidle.ledger.layout import WORD_AT
from whyidle.ledger.reader import Ledger, parse_ledger
from whyidle.verdict import background

MS = 1_000_000
Stretches = list[tuple[float, float, float]]
"""(steps, ms that each took longer, ms by which the steps around it differ)."""


def ledger_with(tmp_path: Path, stretches: Stretches, label: str = "thread saver", part: str = "lock") -> Ledger:
    """A ledger of 100 steps of 0.1 s each, with one work beside some of them."""
    writer = write(str(tmp_path), Spec(world_size=1, steps=100, step={"compute": 0.1}))
    index = 1
    writer.set_string(BACKGROUND_LABELS[index], label)

    def put(word: str, at: int, value: float) -> None:
        writer.words[WORD_AT[f"background_{word}"][0] + at] = round(value)

    steps = 1000 * sum(count for count, _, _ in stretches)
    for word, value in (("stretches", len(stretches)), ("steps", steps), ("compared", len(stretches))):
        put(word, index, value)
    put("compared_steps", index, steps)
    put("normal_ns", index, steps / 1000 * 75 * MS)
    put("part_ns", index * len(PARTS) + PARTS.index(part), sum(count * ms for count, ms, _ in stretches) * MS)
    for number, (count, ms, drift) in enumerate(stretches):
        for word, value in (("steps", 1000 * count), ("excess_ns", ms * MS), ("drift_ns", drift * MS)):
            put(f"last_{word}", index * LAST + number % LAST, value)
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
