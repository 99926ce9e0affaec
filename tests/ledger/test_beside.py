"""Steps beside background work are compared with the steps around them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_background import MS, QUIET, block

from whyidle.ledger.background import PARTS, SUMS
from whyidle.ledger.beside import Block, Comparisons, Slope

THREAD = {"thread saver": 0.9}
SAVE = {"save": 1.0}


def compared(blocks: Iterable[Block], most: int = 6) -> Comparisons:
    found = Comparisons(most)
    for each in blocks:
        found.add(each)
    found.end()
    return found


def rates(slope: Slope) -> tuple[float, float]:
    """Without the work, and where it works all the time: in steps per time of the first step."""
    sums = dict(zip(SUMS, slope.sums, strict=True))
    change = sums["rate_change"] / sums["squares"]
    usual = (sums["rate_level"] - change * sums["level"]) / sums["squares"]
    return usual, usual + change


def test_nothing_is_found_where_nothing_works() -> None:
    assert compared([block()] * 50).slopes == {}


def test_steps_beside_work_are_compared_with_those_before_and_after_it() -> None:
    slow = block(SAVE, steps=4, lock=75.0)
    found = compared([*[block()] * 6, *[slow] * 4, *[block()] * 6])
    slope = found.slopes["save"]
    assert rates(slope) == pytest.approx((1.0, 50 / 125))
    assert (found.step_ns, slope.stretches, slope.most) == (50 * MS, 1, 1.0)
    assert slope.worked_ns == pytest.approx(16 * 125 * MS)


def test_the_parts_of_a_step_are_compared_too() -> None:
    slope = compared([block(), block(SAVE, lock=50.0), block()]).slopes["save"]
    sums = dict(zip(SUMS, slope.sums, strict=True))
    changes = {part: sums[f"{part}_change"] / sums["squares"] for part in PARTS}
    assert changes == pytest.approx({**dict.fromkeys(PARTS, 0.0), "compute": -0.5, "lock": 0.5})


def test_a_run_that_becomes_slower_steadily_costs_nothing() -> None:
    blocks = [block(SAVE if number % 10 >= 6 else QUIET, step_ms=50 + number / 2) for number in range(60)]
    usual, beside = rates(compared(blocks).slopes["save"])
    assert beside / usual == pytest.approx(1.0, abs=0.03)


@given(st.lists(st.floats(0.0, 1.0), min_size=4, max_size=40).filter(lambda parts: max(parts) - min(parts) > 0.2))
def test_a_work_may_begin_and_end_anywhere_in_a_block(parts: list[float]) -> None:
    """Blocks of 2 s: steps take 10 ms, and 25 ms beside the work."""
    blocks = []
    for part in parts:
        steps = round(200 * (1 - part) + 80 * part)
        blocks.append(Block(steps, 2000 * MS, (0, 0, 2000 * MS, 0, 0, 0, 0), {"save": part}))
    slopes = compared(blocks).slopes
    if slopes and slopes["save"].sums[0] > 0:  # else its part changes too slowly to tell
        usual, beside = rates(slopes["save"])
        assert beside / usual == pytest.approx(0.4, abs=0.05)


def test_a_work_that_is_always_there_is_not_compared() -> None:
    blocks = [block({"thread prefetch": 0.5, **(THREAD if number % 20 > 15 else {})}) for number in range(140)]
    found = compared(blocks).slopes
    assert found["thread saver"].stretches >= 4
    assert found["thread prefetch"].sums[SUMS.index("squares")] == pytest.approx(0.0, abs=0.2)


def test_a_work_in_bursts_counts_also_in_blocks_that_are_longer_than_its_rests() -> None:
    """It works for 2 s of each 4. Blocks have 1 s at first, later 8 s."""
    short = [block(THREAD if number % 4 > 1 else QUIET, steps=20) for number in range(12)]
    long = [block({"thread saver": 0.45 + 0.02 * (number % 3)}, steps=160) for number in range(20)]
    slope = compared([*short, *long]).slopes["thread saver"]
    assert slope.stretches == 3
    assert slope.worked_ns == pytest.approx((6 * 0.9 + 8 * 20 * 0.47) * 1000 * MS, rel=0.01)


def test_a_work_that_is_always_there_with_different_force_hides_nothing() -> None:
    blocks = [
        block({"thread prefetch": 0.2 + 0.8 * (number % 3 == 0), **({"thread a": 0.9} if number % 20 > 15 else {})})
        for number in range(140)
    ]
    found = compared(blocks).slopes
    assert found["thread a"].stretches >= 4
    assert found["thread prefetch"].stretches == 1


def test_a_link_that_is_used_in_every_block_is_compared() -> None:
    """Others use it for 4 s of each 12 s. A block has 7 s, and steps beside them take twice as long."""
    blocks = []
    for number in range(30):
        part = sum((7 * number + tenth / 10) % 12 >= 8 for tenth in range(70)) / 70
        steps = round(140 * (1 - part / 2))
        blocks.append(Block(steps, 7000 * MS, (0, 0, 0, 0, 0, 7000 * MS, 0), {"link eth0": 0.05 + 0.9 * part}))
    unknown = [one._replace(works={}) for one in blocks[:3]]
    slope = compared([*unknown, *blocks]).slopes["link eth0"]
    usual, beside = rates(slope)
    assert beside / usual == pytest.approx(0.45, abs=0.05)
    assert slope.stretches >= 5


def test_a_link_that_others_always_use_hides_no_neighbour() -> None:
    shares = (0.2, 0.5, 0.3, 0.5, 0.2)
    blocks = [
        block(
            {"link eth0": shares[number % 5], "neighbour": 0.9 * (number % 20 > 9)}, step_ms=50 + 50 * (number % 20 > 9)
        )
        for number in range(140)
    ]
    found = compared(blocks).slopes["neighbour"]
    assert found.stretches >= 5
    assert rates(found)[0] > 1.7 * rates(found)[1]


def test_a_link_that_others_always_use_is_not_compared() -> None:
    found = compared([block({"link eth0": 0.5 + 0.01 * (number % 7)}) for number in range(200)]).slopes
    assert found["link eth0"].sums[SUMS.index("squares")] == pytest.approx(0.0, abs=0.1)


def test_a_work_that_hardly_does_anything_is_not_one() -> None:
    assert compared([block({"thread logger": 0.02 if number % 5 else 0.0}) for number in range(60)]).slopes == {}


def test_a_save_gives_its_name_to_the_thread_and_the_disk_that_work_for_it() -> None:
    works = {"thread saver": 0.9, "save": 1.0, "disk /data": 0.4}
    assert [*compared([*[block()] * 6, *[block(works)] * 4, *[block()] * 6]).slopes] == ["save"]


def test_a_neighbour_that_comes_and_goes_changes_nothing_for_a_save() -> None:
    """And a save says nothing about a neighbour."""
    blocks = [
        block({**SAVE, **({"neighbour": 0.9} if number % 3 else QUIET)}, step_ms=100)
        if number % 10 in (5, 6)
        else block({"neighbour": 0.9} if number % 3 else QUIET)
        for number in range(60)
    ]
    found = compared(blocks).slopes
    assert found["save"].stretches == 6
    assert rates(found["save"]) == pytest.approx((1.0, 0.5))
    assert rates(found["neighbour"]) == pytest.approx((1.0, 1.0))


def test_a_save_that_costs_most_when_it_begins_and_ends_has_its_mean_cost() -> None:
    ends, middle = block(SAVE, step_ms=200), block(SAVE, step_ms=50)
    found = compared([*[block()] * 6, ends, *[middle] * 8, ends, *[block()] * 6, ends, *[middle] * 8, ends, block()])
    assert rates(found.slopes["save"]) == pytest.approx((1.0, 200 / (2 * 800 + 8 * 200) * 10), rel=0.01)


def test_what_is_mostly_a_save_or_an_evaluation_is_not_compared() -> None:
    long = Block(10, 10_000 * MS, (0, 0, 500 * MS, 0, 0, 0, 0), SAVE)
    assert compared([*[block()] * 6, long, *[block()] * 6]).slopes == {}


def test_the_call_that_begins_a_save_does_not_count_as_steps_beside_it() -> None:
    """The call takes 1 s of a block of 2 s: before it is a second without the save, so nothing has become slower."""
    call = Block(20, 2000 * MS, (0, 0, 1000 * MS, 0, 0, 0, 0), {"save": 0.5})
    slow = block(SAVE, step_ms=100)
    found = compared([*[block()] * 6, call, slow, *[block()] * 6]).slopes["save"]
    assert rates(found) == pytest.approx((1.0, 0.5))
    assert found.worked_ns == 1000 * MS


def test_there_is_a_limit_to_what_is_told_apart() -> None:
    blocks = [block({f"thread {number}": 1.0} if number % 2 else QUIET) for number in range(20)]
    assert [*compared(blocks, most=2).slopes] == ["thread 1", "thread 3"]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 50),
            st.floats(0.1, 1e4),
            st.dictionaries(st.sampled_from(["save", "thread a", "disk /d", "neighbour"]), st.floats(0, 1)),
        )
    )
)
def test_no_work_has_worked_for_longer_than_there_were_steps(rows: list[tuple[int, float, dict[str, float]]]) -> None:
    blocks = [block(works, steps, step_ms) for steps, step_ms, works in rows]
    for slope in compared(blocks).slopes.values():
        assert 0 <= slope.worked_ns <= sum(each.ns for each in blocks) * (1 + 1e-9)
