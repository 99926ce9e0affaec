"""Stretches of background work are compared with the steps around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.ledger.background import PARTS
from whyidle.ledger.beside import Block, Pairings, Stretch

MS = 1_000_000
QUIET: Mapping[str, float] = {}
THREAD = {"thread saver": 0.9}


def block(works: Mapping[str, float] = QUIET, steps: int = 10, step_ms: float = 50.0, **more_ms: float) -> Block:
    """A block of steps that compute, with more ms a step in other parts."""
    each = {"compute": step_ms} | more_ms
    parts = tuple(round(each.get(part, 0.0) * steps * MS) for part in PARTS)
    return Block(steps, sum(parts), parts, works)


def stretches(blocks: Iterable[Block]) -> list[Stretch]:
    pairing = Pairings()
    found = [stretch for each in blocks for stretch in pairing.add(each)]
    return found + pairing.finish()


def excess_of(stretch: Stretch) -> dict[str, float]:
    """ms of each step beside the work."""
    assert stretch.excess_ns is not None
    return {part: ns / MS / stretch.steps for part, ns in zip(PARTS, stretch.excess_ns, strict=True)}


def test_nothing_is_found_where_nothing_works() -> None:
    assert stretches([block()] * 50) == []


def test_steps_beside_work_are_compared_with_those_before_and_after_it() -> None:
    slow = block(THREAD, steps=4, lock=75.0)
    (found,) = stretches([*[block()] * 6, *[slow] * 4, *[block()] * 6])
    assert (found.label, found.steps) == ("thread saver", 16)
    assert excess_of(found) == pytest.approx({**dict.fromkeys(PARTS, 0.0), "lock": 75.0})
    assert found.normal_ns == pytest.approx(16 * 50 * MS)
    assert found.drift_ns == 0


def test_a_run_that_becomes_slower_steadily_costs_nothing() -> None:
    blocks = [block(THREAD if 20 <= number < 24 else QUIET, step_ms=50 + number) for number in range(44)]
    (found,) = stretches(blocks)
    assert excess_of(found)["compute"] == pytest.approx(0.0, abs=0.5)
    assert found.drift_ns > 2 * MS


def test_blocks_in_which_the_work_begins_or_ends_count_with_their_part_of_the_steps() -> None:
    ends = {"thread saver": 0.45}
    edge, middle = block(ends, steps=10, lock=25.0), block(THREAD, steps=10, lock=50.0)
    (found,) = stretches([*[block()] * 6, edge, middle, middle, edge, *[block()] * 6])
    assert found.steps == pytest.approx(30)
    assert excess_of(found)["lock"] == pytest.approx(50.0)


@pytest.mark.parametrize("at", [0, 1], ids=["at the beginning", "at the end"])
def test_a_stretch_without_steps_on_both_sides_counts_but_is_not_compared(at: int) -> None:
    around = ([], [block()] * 9)
    slow = [block(THREAD, lock=10.0)] * 2
    (found,) = stretches([*around[at], *slow, *around[1 - at]])
    assert found.steps == 20
    assert found.excess_ns is None


def test_a_work_that_is_always_there_is_not_compared() -> None:
    blocks = [block({"thread prefetch": 0.5, **(THREAD if number % 20 > 15 else {})}) for number in range(140)]
    compared = [stretch for stretch in stretches(blocks) if stretch.excess_ns is not None]
    assert {stretch.label for stretch in compared} == {"thread saver"}


def test_a_work_that_hardly_does_anything_is_not_one() -> None:
    assert stretches([block({"thread logger": 0.02 if number % 5 else 0.0}) for number in range(60)]) == []


def test_a_little_work_is_neither_a_stretch_nor_steps_without_it() -> None:
    little = block({"thread saver": 0.05}, step_ms=500)
    assert stretches([*[block()] * 9, little, *[block()] * 9]) == []


def test_a_save_gives_its_name_to_the_thread_and_the_disk_that_work_for_it() -> None:
    works = {"thread saver": 0.9, "save": 1.0, "disk /data": 0.4}
    (found,) = stretches([*[block()] * 6, *[block(works)] * 4, *[block()] * 6])
    assert found.label == "save"


def test_a_neighbour_that_comes_and_goes_changes_nothing_for_a_save() -> None:
    blocks = [
        block({"save": 1.0} if number % 10 in (5, 6) else {"neighbour": 0.9} if number % 3 else QUIET)
        for number in range(60)
    ]
    found = stretches(blocks)
    assert sum(stretch.label == "save" for stretch in found) == 6
    assert all(stretch.steps == 20 for stretch in found if stretch.label == "save")


def test_a_disk_that_works_after_a_save_is_compared_with_steps_without_both() -> None:
    tail = block({"disk /data": 0.5}, storage=20.0)
    blocks = [*[block()] * 9, *[block({"save": 1.0, "disk /data": 0.9}, lock=50.0)] * 3, tail, tail, *[block()] * 9]
    by_label = {stretch.label: stretch for stretch in stretches(blocks)}
    assert excess_of(by_label["disk /data"])["storage"] == pytest.approx(20.0)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 50),
            st.floats(0.1, 1e4),
            st.dictionaries(st.sampled_from(["save", "thread a", "disk /d", "neighbour"]), st.floats(0, 1)),
        )
    )
)
def test_each_step_is_in_at_most_one_stretch(rows: list[tuple[int, float, dict[str, float]]]) -> None:
    found = stretches(block(works, steps, step_ms) for steps, step_ms, works in rows)
    assert sum(stretch.steps for stretch in found) <= sum(steps for steps, _, _ in rows) * (1 + 1e-9)
    assert all(stretch.steps > 0 for stretch in found)
