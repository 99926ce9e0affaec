"""Each group of ranks is split separately, also in a step with a collective that only some ranks make."""

from __future__ import annotations

import pytest
from support_forks import Forks
from support_quiet import wait_for_quiet
from support_training import Outcome, assert_every_second_is_in_one_place

from whyidle.ledger.reader import Ledger, Slot

pytestmark = [pytest.mark.alone, pytest.mark.xdist_group("pairs")]

STEPS, LATE_NS = 120, 20_000_000
LATE_IN_ALL_NS = STEPS * LATE_NS


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Outcome:
    wait_for_quiet()
    found, codes = forks.run(("pairs.py",), tmp_path_factory.mktemp("pairs"), 4)
    assert codes == [0] * 4, found.stderr
    return found


def slots_of(ledger: Ledger) -> tuple[Slot, Slot]:
    """The slots of the world and of the pair."""
    slots = {slot.label: slot for slot in ledger.slots}
    assert set(slots) == {"world", "2 ranks"}
    return slots["world"], slots["2 ranks"]


def test_groups_have_the_same_key_on_all_their_ranks_and_on_no_others(outcome: Outcome) -> None:
    worlds, pairs = zip(*(slots_of(outcome.rank(rank)[1]) for rank in range(4)), strict=True)
    assert {world.size for world in worlds} == {4}
    assert {pair.size for pair in pairs} == {2}
    assert len({world.key for world in worlds}) == 1
    assert [pair.key for pair in pairs] == [pairs[0].key, pairs[0].key, pairs[2].key, pairs[2].key]
    assert len({worlds[0].key, pairs[0].key, pairs[2].key}) == 3
    assert [pair.calls for pair in pairs] == [2 * STEPS, 2 * STEPS, STEPS, STEPS]


def test_most_waits_are_split_although_only_one_pair_makes_a_collective(outcome: Outcome) -> None:
    """Waits before both sides had met, and those at the end of the run, are not split."""
    for rank in range(4):
        told, ledger = outcome.rank(rank)
        assert_every_second_is_in_one_place(told, ledger)
        for slot in slots_of(ledger):
            assert slot.settled >= STEPS // 2
            assert slot.waited == slot.network + slot.straggler + slot.pipeline + slot.queue + slot.unsplit
            assert slot.unsplit <= slot.waited // 2, f"rank {rank}, {slot.label}"


def test_the_late_rank_is_named_in_its_own_group(outcome: Outcome) -> None:
    _, waits = slots_of(outcome.rank(0)[1])
    assert waits.straggler > LATE_IN_ALL_NS // 2
    assert max(waits.behind, key=lambda rank: waits.behind[rank]) == 1
    _, late = slots_of(outcome.rank(1)[1])
    assert late.straggler < LATE_IN_ALL_NS // 5
    slept = late.late_own.get("compute", 0) + late.late_own.get("host", 0)  # no hook sees the sleep of the loop itself
    assert slept > LATE_IN_ALL_NS // 2


def test_the_pair_without_a_late_rank_waits_in_the_world_and_not_in_its_own_group(outcome: Outcome) -> None:
    for rank in (2, 3):
        world, pair = slots_of(outcome.rank(rank)[1])
        assert pair.straggler < LATE_IN_ALL_NS // 5
        assert world.straggler > LATE_IN_ALL_NS // 2
        assert world.behind.get(0, 0) + world.behind.get(1, 0) > 0.9 * world.straggler


def test_names_the_wait_in_its_pair_that_made_a_rank_late_in_the_world(outcome: Outcome) -> None:
    """Ranks 0 and 1 enter the world's collective together. Rank 0 was in its pair before, rank 1 computed alone."""
    world, pair = slots_of(outcome.rank(0)[1])
    by_own = sum(world.late_own.values())
    assert world.late_elsewhere.get(pair.index, 0) > 2 * by_own
    assert set(world.late_elsewhere) == {pair.index}
    world, pair = slots_of(outcome.rank(1)[1])
    assert sum(world.late_own.values()) > 2 * world.late_elsewhere.get(pair.index, 0)
