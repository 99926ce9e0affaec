"""Hops: how far live counters are from the exact chain if each rank passes on what made it late once a block."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedules.cases import cases
from schedules.hops import MIX_FAMILIES, errors, pack_mix, read_mix
from schedules.replay import replay

from whyidle.ledger.causes import FAMILIES, LATE_FAMILIES
from whyidle.ledger.layout import SLOTS
from whyidle.ledger.waits import Settled
from whyidle.torch_hooks.exchange.mixes import Mixes, open_block
from whyidle.torch_hooks.groups import Group

pytestmark = pytest.mark.xdist_group("hops")

ROUNDS = (1, 3)
TURNING = ("microbatches", "reads_turn")
CASES = [case for case in cases() if case.ranks <= 8 and case.microbatches <= 8]
STEADY = [replace(case, steps=12) for case in CASES if case.fault and case.fault.kind not in TURNING][::8]
ROTATING = [replace(case, steps=12) for case in CASES if case.fault and case.fault.kind in TURNING][::5]


@given(st.lists(st.integers(0, 100), min_size=len(MIX_FAMILIES), max_size=len(MIX_FAMILIES)).filter(any))
def test_mix_round_trips_through_its_word(weights: list[int]):
    mix = {family: weight / sum(weights) for family, weight in zip(MIX_FAMILIES, weights, strict=True)}
    word = pack_mix(mix)
    assert 0 <= word < 1 << 63
    again = read_mix(word)
    assert sum(again.values()) == pytest.approx(1.0)
    assert all(again.get(family, 0.0) == pytest.approx(share, abs=0.04) for family, share in mix.items())


def test_transfer_cost_of_a_pipeline_is_charged_to_the_network():
    group = Group(2, (0, 1, 2), True, "pp", 77)
    settled = Settled(8, 1, 1, pipeline=60, latency=40, behind={1: 15})
    charged = Mixes(0, range(SLOTS)).charge(group, open_block(settled))
    assert dict(zip(FAMILIES, charged, strict=True)) == dict.fromkeys(FAMILIES, 0) | {"network": 40, "pipeline": 15}


def test_transfers_without_a_cpu_are_followed_to_the_cpu():
    """Rank 0 was late because of transfers in another group. In three fifths of these, its threads got no CPU."""
    here, there = Group(1, (0, 1), False, "dp", 7), Group(2, (0, 2), False, "tp", 8)
    mixes, late = Mixes(0, range(SLOTS)), Settled(8, 1, 1, late_by={0: 10})
    late.late[len(LATE_FAMILIES) + there.slot] = 10
    mixes.settled(there, Settled(8, 1, 1, network=20, queue=30))
    mixes.settled(here, late)
    said = read_mix(mixes.words(here, [open_block(late)])[0])
    assert said == pytest.approx({"cpu": 0.6, "network": 0.4}, abs=0.01)


def test_bubble_that_is_waited_in_a_collective_is_charged_to_the_pipeline():
    """The schedule costs 10 in a step, of which this rank waits 4 for messages. The block has two steps."""
    world, pipe = Group(0, (0, 1, 2), False, "world", 7), Group(1, (0, 1, 2), True, "pp", 8)
    mixes = Mixes(0, range(SLOTS))
    mixes.settled(pipe, Settled(4, 1, 1, pipeline=16, schedule=40, steps=4))
    charged = mixes.charge(world, open_block(Settled(8, 1, 1, behind={1: 30}, steps=2)))
    expected = {"pipeline": 12, "straggler": 18}
    assert dict(zip(FAMILIES, charged, strict=True)) == dict.fromkeys(FAMILIES, 0) | expected


@pytest.mark.parametrize(("least", "network"), [(0, 1.0), (8, 0.5), (10, 0.0)])
def test_transfers_that_all_members_have_make_none_of_them_late(least: int, network: float):
    """Rank 0 was late by 4 because of its pipeline, where transfers take 10 in a step and the bubble 20."""
    here, pipe = Group(1, (0, 3), False, "dp", 7), Group(2, (0, 1), True, "pp", 8)
    mixes, other = Mixes(0, range(SLOTS)), Mixes(3, range(SLOTS))
    late = Settled(8, 1, 1, late_by={0: 4})
    late.late[len(LATE_FAMILIES) + pipe.slot] = 4
    mixes.settled(pipe, Settled(8, 1, 1, network=10, pipeline=20))
    other.settled(Group(2, (3, 4), True, "pp", 9), Settled(8, 1, 1, network=least, pipeline=20))
    mixes.settled(here, late)
    said = map(min, mixes.words(here, []), other.words(here, []))
    mixes.hear(here, [], [*said])
    mix = read_mix(mixes.words(here, [open_block(late)])[0])
    assert mix.get("network", 0.0) == pytest.approx(network, abs=0.01)
    assert sum(mix.values()) == pytest.approx(1.0)


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, int], list[float]]:
    """(kind, rounds) -> the mean error of each block of two steps, in points of wall."""
    rows = {}
    for kind, chosen in (("steady", STEADY), ("rotating", ROTATING)):
        found = [errors(replay(case), 2, ROUNDS) for case in chosen]
        for rounds in ROUNDS:
            rows[kind, rounds] = [mean(block) for block in zip(*(one[rounds] for one in found), strict=True)]
            print(f"\n{kind}, {rounds} hops a block:", *(f"{error:.2f}" for error in rows[kind, rounds]), end="")
    return rows


def test_steady_faults_are_within_a_point_after_three_blocks_of_one_hop(table):
    assert max(table["steady", 1][2:]) <= 1.0


def test_three_hops_a_block_are_within_half_a_point_from_the_first_block(table):
    assert max(table["steady", 3]) <= 0.5


def test_rotating_faults_need_three_hops_for_the_same_block(table):
    assert max(table["rotating", 3]) <= 1.0
    assert mean(table["rotating", 1]) > mean(table["rotating", 3])


def test_a_rank_without_a_group_has_no_transfers_there():
    """Ranks 0 and 2 share another group. Its transfers make rank 0 late for rank 1, which is not in it."""
    world, shared = Group(0, (0, 1, 2), False, "world", 7), Group(2, (0, 2), False, "embedding", 8)
    members = [Mixes(0, (0, 2)), Mixes(1, (0,)), Mixes(2, (0, 2))]
    late = Settled(8, 1, 1, late_by={0: 20})
    late.late[len(LATE_FAMILIES) + shared.slot] = 20
    for mixes in members:
        mixes.settled(world, late)
    for mixes in (members[0], members[2]):
        mixes.settled(shared, Settled(8, 1, 1, network=20))
    members[0].hear(world, [], [*map(min, *(mixes.words(world, []) for mixes in members))])
    mix = read_mix(members[0].words(world, [open_block(late)])[0])
    assert mix == pytest.approx({"network": 1.0}, abs=0.01)
