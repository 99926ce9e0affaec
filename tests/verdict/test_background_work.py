"""What background work costs is said only where it is known."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from support_background import MS, Stretches, Work
from support_ledgers import Spec, write

from whyidle.ledger.background import SUMS, Background
from whyidle.ledger.beside import Block, Comparisons
from whyidle.ledger.reader import Ledger, parse_ledger
from whyidle.verdict import background


def ledger_with(tmp_path: Path, stretches: Stretches, label: str = "thread saver") -> Ledger:
    """A ledger of 100 steps of 0.1 s each, with one work beside some of them."""
    spec = Spec(world_size=1, steps=100, step={"compute": 0.1}, backgrounds=[Work(label, stretches)])
    writer = write(str(tmp_path), spec)
    raw = writer.copy()
    writer.close()
    return parse_ledger(raw, writer.path, alive=False)


def test_says_what_a_thread_costs_and_what_both_need(tmp_path: Path) -> None:
    (entry,) = background.entries([ledger_with(tmp_path, [(5, 25), (4, 26), (6, 24), (5, 25)])])
    assert entry["sure"]
    assert (entry["kind"], entry["name"], entry["part"]) == ("thread", "saver", "lock")
    assert entry["share"] == pytest.approx(20 * 0.025 / 10, rel=0.02)
    assert entry["sentence"] == (
        "the thread saver costs 25 % of the time of the 20 steps beside it: 5.0 % of the run (rank 0). "
        "Both need Python's lock."
    )


@pytest.mark.parametrize(
    "stretches",
    [[(20, 25)], [(20, 25), (20, 25)], [(10, 25), (10, -20), (10, 30), (10, 5)], [(10, 1)] * 8, [(10, -25)] * 8],
    ids=["one stretch", "two stretches", "different costs", "too little", "quicker beside it"],
)
def test_says_nothing_where_it_may_be_chance(stretches: Stretches, tmp_path: Path) -> None:
    (entry,) = background.entries([ledger_with(tmp_path, stretches)])
    assert not entry["sure"]
    assert entry["sentence"] == ""


def test_one_stretch_says_nothing_however_many_blocks_it_has() -> None:
    """Its share grows and shrinks in steps, and the loop is slower just as much."""
    found, now, ramp = Comparisons(1), 0, [each / 8 for each in range(9)]
    for number, share in enumerate([*[0.0] * 8, *ramp, *reversed(ramp), *[0.0] * 8]):
        ns = round(1000 * MS * (1 + 0.4 * share + 0.01 * (number % 3)))
        found.add(Block(10, ns, (0, 0, ns, 0, 0, 0, 0), {"neighbour node": share}))
        now += ns
    cost = background.cost_of(_Run(now), background_of(found))  # type: ignore[arg-type]
    assert cost is not None
    assert cost.share > background.SHARE
    assert not cost.sure


def test_a_work_of_a_kind_that_is_not_known_is_ignored(tmp_path: Path) -> None:
    assert background.entries([ledger_with(tmp_path, [(10, 25)] * 4, label="spirit level")]) == []


def test_the_rank_that_loses_most_is_the_one_that_is_named(tmp_path: Path) -> None:
    ledgers = []
    for rank, ms in enumerate((25, 35)):
        work = Work("save", [(5, ms), (5, ms + 1), (5, ms - 1), (5, ms)])
        writer = write(str(tmp_path), Spec(rank=rank, steps=100, step={"compute": 0.1}, backgrounds=[work]))
        ledgers.append(parse_ledger(writer.copy(), writer.path, alive=False))
        writer.close()
    assert [entry["rank"] for entry in background.entries(ledgers) if entry["sentence"]] == [1]


def simulated(seed: int, longer: float) -> tuple[float, float, bool]:
    """(true share, share, whether it is sure) of a work that makes steps longer by this part, in a run of 140 looks.

    Step times vary by a tenth, slowly and quickly, and now and then a step takes 20 times as long. Looks are 0.6 to 3 s
    apart, and the work does not begin or end with them.
    """
    random, found, usual = Random(seed), Comparisons(1), 40 * MS
    rest, lasts, level = random.uniform(4, 9) * 1000 * MS, random.uniform(2, 5) * 1000 * MS, 0.0
    now = lost = begun = steps = worked = 0
    due = random.uniform(0.6, 3) * 1000 * MS
    for _ in range(140):
        while now < due:
            level = 0.98 * level + random.gauss(0, 0.015)
            ns = round(usual * max(0.3, 1 + level + random.gauss(0, 0.1) + 20 * (random.random() < 0.001)))
            works = now % (rest + lasts) >= rest
            more = round(ns * longer) if works else 0
            now, lost, steps = now + ns + more, lost + more, steps + 1
            worked += (ns + more) if works else 0
        ns = now - begun
        found.add(Block(steps, ns, (0, 0, ns, 0, 0, 0, 0), {"thread saver": worked / ns}))
        begun, steps, worked = now, 0, 0
        due = now + random.uniform(0.6, 3) * 1000 * MS
    cost = background.cost_of(_Run(now), background_of(found))  # type: ignore[arg-type]
    assert cost is not None
    return lost / now, cost.share, cost.sure


class _Run:
    """As much of a ledger as a cost needs."""

    rank, window_ns = 0, 0

    def __init__(self, until_ns: int):
        self.until_ns = until_ns


def background_of(found: Comparisons) -> Background:
    (label, slope), *_ = found.slopes.items()
    kind, name = label.split()
    sums = dict(zip(SUMS, slope.sums, strict=True))
    return Background(kind, name, slope.stretches, round(slope.worked_ns), slope.most, found.step_ns, sums)


def test_nothing_is_found_in_two_hundred_runs_in_which_the_work_costs_nothing() -> None:
    assert sum(sure for _, _, sure in (simulated(seed, 0.0) for seed in range(200))) == 0


@pytest.mark.parametrize("longer", [0.3, 1.0, 8.0])
def test_a_cost_is_found_and_right_within_three_points(longer: float) -> None:
    found = [simulated(seed, longer) for seed in range(60)]
    assert sum(abs(share - truth) < 0.03 for truth, share, _ in found) >= 58
    assert sum(sure for *_, sure in found) >= 58
