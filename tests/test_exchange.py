"""The MIN exchange as arithmetic: blocks of several ranks, reduced here as gloo would, must give the known split."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.ledger.causes import LATE_FAMILIES
from whyidle.torch_hooks.books import StepWaits
from whyidle.torch_hooks.exchange import (
    BLOCK_STEPS,
    BlockMismatch,
    Split,
    Steps,
    block_length,
    lateness,
    pack_block,
    split_block,
    words_of,
)

MS = 1_000_000
STEPS = BLOCK_STEPS[0]


def exchange(ranks: list[Steps]) -> list[list[Split]]:
    """Packs, takes the minimum word by word, and splits for every rank."""
    buffers = []
    for rank, steps in enumerate(ranks):
        buffer = array("q", bytes(8 * words_of(STEPS)))
        pack_block(buffer, rank, steps)
        buffers.append(buffer)
    result = array("q", [min(words) for words in zip(*buffers, strict=True)])
    return [split_block(result, rank, len(ranks), steps) for rank, steps in enumerate(ranks)]


def own(**families: int) -> tuple[int, ...]:
    return tuple(families.get(family, 0) for family in LATE_FAMILIES)


def test_the_worked_example() -> None:
    """DESIGN's two ranks: 50 ms of compute, 10 ms of transfer, and rank 1 reads for 40 ms a step."""
    early: Steps = [(StepWaits(50 * MS, own(compute=50 * MS)), False)] * STEPS
    late: Steps = [(StepWaits(10 * MS, own(compute=50 * MS, storage=40 * MS)), False)] * STEPS
    first, second = exchange([early, late])
    assert first == [Split(10 * MS, 40 * MS, 0, ())] * STEPS
    assert second == [Split(10 * MS, 0, 0, own(storage=40 * MS))] * STEPS


def test_a_step_with_a_collective_of_some_ranks_only_stays_unsplit_on_all() -> None:
    plain: Steps = [(StepWaits(9 * MS, own()), False)] * STEPS
    mixed: Steps = [(StepWaits(2 * MS, own()), True), *plain[1:]]
    first, second = exchange([plain, mixed])
    assert first[0] == Split(0, 0, 9 * MS, ())
    assert second[0] == Split(0, 0, 2 * MS, ())
    assert first[1].unsplit == 0


@pytest.mark.parametrize("firsts", [[3, 4], [4, 3]])
def test_ranks_out_of_step_are_noticed_by_every_rank(firsts: list[int]) -> None:
    ranks: list[Steps] = [[(StepWaits(MS, own(), MS, first), False)] * STEPS for first in firsts]
    with pytest.raises(BlockMismatch):
        exchange(ranks)


def test_a_result_that_never_left_its_rank_is_noticed() -> None:
    for rank in range(2):
        buffer = array("q", bytes(8 * words_of(STEPS)))
        steps: Steps = [(StepWaits(MS, own()), False)] * STEPS
        pack_block(buffer, rank, steps)
        with pytest.raises(BlockMismatch):
            split_block(buffer, rank, 2, steps)


waits = st.integers(0, 10**12)
owns = st.tuples(*[waits] * len(LATE_FAMILIES))


@given(
    st.lists(
        st.lists(st.builds(StepWaits, waits, owns, waits, st.just(1)), min_size=STEPS, max_size=STEPS),
        min_size=2,
        max_size=5,
    )
)
def test_whatever_the_waits_nothing_is_lost_and_nobody_is_blamed_for_more_than_the_longest(
    ranks: list[list[StepWaits]],
) -> None:
    splits = exchange([[(one, False) for one in steps] for steps in ranks])
    for step in range(STEPS):
        column = [steps[step].wait for steps in ranks]
        least, most = min(column), max(column)
        late = [one[step].late for one in splits if one[step].late]
        assert len(late) == 1
        assert abs(sum(late[0]) - (most - least)) < 2000
        for wait, split in zip(column, (one[step] for one in splits), strict=True):
            assert split.network + split.straggler + split.unsplit == wait
            assert least - 1000 < split.network <= least


def test_what_no_family_explains_is_unattributed() -> None:
    assert lateness(10, own(storage=7), array("q", own(storage=3))) == own(storage=4, unattributed=6)


def test_excesses_beyond_the_lateness_are_shares_of_it() -> None:
    assert lateness(10, own(compute=30, storage=10), array("q", own())) == own(compute=7, storage=2, unattributed=1)


@pytest.mark.parametrize(
    ("step_seconds", "steps"), [(0.0005, 256), (0.005, 128), (0.03, 16), (0.1, 8), (30.0, 8), (0.0, 256)]
)
def test_a_block_takes_about_half_a_second_within_its_bounds(step_seconds: float, steps: int) -> None:
    assert block_length(int(step_seconds * 1e9)) == steps


def test_the_slowest_rank_tells_the_length_of_blocks() -> None:
    ranks: list[Steps] = [[(StepWaits(0, own(), wall), False)] * STEPS for wall in (5 * MS, 40 * MS)]
    buffers = []
    for rank, steps in enumerate(ranks):
        buffer = array("q", bytes(8 * words_of(STEPS)))
        pack_block(buffer, rank, steps)
        buffers.append(buffer)
    assert min(buffer[4] for buffer in buffers) == -40 * MS
