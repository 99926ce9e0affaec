"""The arithmetic that splits waits: blocks of several ranks, reduced as gloo would, must have the known split."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.ledger.causes import LATE_FAMILIES
from whyidle.ledger.layout import SLOTS
from whyidle.ledger.waits import (
    MOST_WIDTH,
    US,
    BlockMismatch,
    Settled,
    StepWaits,
    add_lateness,
    pack,
    split,
    width_for,
    words_of,
)
from whyidle.torch_hooks.exchange.slot import block_length, messages_block_length

MS = 1_000_000
NOWHERE = (0,) * SLOTS
NETWORK = LATE_FAMILIES.index("network")


def own(**families: int) -> tuple[int, ...]:
    return tuple(families.get(family, 0) for family in LATE_FAMILIES)


def step(calls: Sequence[int], own_time: Sequence[int] = own(), *, number: int = 1, wall: int = MS) -> StepWaits:
    return StepWaits(number, wall, calls, own_time, NOWHERE, [-1] * len(calls))


def exchange(ranks: dict[int, list[StepWaits]], *, length: int = 8, width: int = 8) -> dict[int, Settled]:
    """Packs, takes the minimum word by word, and splits for every rank."""
    buffers = []
    for rank, steps in ranks.items():
        buffer = array("q", bytes(8 * words_of(length, width)))
        pack(buffer, rank, steps, length, width)
        buffers.append(buffer)
    result = array("q", [min(words) for words in zip(*buffers, strict=True)])
    return {rank: split(result, rank, sorted(ranks), steps, length, width) for rank, steps in ranks.items()}


def test_the_worked_example() -> None:
    """Two ranks: 50 ms of compute, 10 ms of transfer, and rank 1 reads for 40 ms in each step."""
    early = [step([50 * MS], own(compute=50 * MS))] * 8
    late = [step([10 * MS], own(compute=50 * MS, storage=40 * MS))] * 8
    found = exchange({0: early, 1: late})
    first, second = found[0], found[1]
    assert (first.network, first.straggler, first.behind) == (80 * MS, 320 * MS, {1: 320 * MS})
    assert (second.network, second.straggler, second.late_steps) == (80 * MS, 0, 8)
    assert second.late_own == list(own(storage=320 * MS))
    assert first.late_by == second.late_by == {1: 320 * MS}


def test_threads_of_the_last_rank_without_a_cpu_delay_the_transfer_of_all() -> None:
    """Rank 1 enters last. In two thirds of its 9 ms its threads get no CPU. Rank 0 has waited 20 ms before."""
    early = step([29 * MS], own(compute=50 * MS))
    late = step([9 * MS], own(compute=70 * MS))._replace(queues=[6 * MS])
    found = exchange({0: [early], 1: [late]})
    for settled in found.values():
        assert (settled.queue, settled.network) == (6 * MS, 3 * MS)
    assert found[0].straggler == 20 * MS


def test_threads_of_a_waiting_rank_delay_a_transfer_only_as_far_as_it_is_one() -> None:
    """Its own transfer by everything that it may have queued then, and that of others by the share of its wait."""
    early = step([29 * MS], own(compute=50 * MS))._replace(queues=[12 * MS])
    late = step([9 * MS], own(compute=70 * MS))._replace(queues=[0])
    found = exchange({0: [early], 1: [late]})
    share = 12 * 63 // 29
    assert [(one.queue, one.network) for one in found.values()] == [
        (9 * MS, 0),
        (9 * MS * share // 63, 9 * MS - 9 * MS * share // 63),
    ]


def test_queues_of_the_first_and_the_last_rank_are_independent() -> None:
    """A rank between them, whose threads had their CPU, learns it from both."""
    first = step([40 * MS], own(compute=50 * MS))._replace(queues=[20 * MS])
    between = step([20 * MS], own(compute=70 * MS))._replace(queues=[0])
    last = step([10 * MS], own(compute=80 * MS))._replace(queues=[5 * MS])
    settled = exchange({0: [first], 1: [between], 2: [last]})[1]
    half = 31 / 63
    assert settled.queue == pytest.approx(10 * MS * (2 * half - half * half), abs=1)
    assert settled.queue + settled.network == 10 * MS


@pytest.mark.parametrize(
    ("transfers", "queued"),
    [
        ((40, 40, 40, 40), 0),  # a slow link: it was busy all the time
        ((10, 40, 40, 40), 3 * 15),  # (40 - 10) / 40 of 20 ms, three times
        ((10, 40, 40), 5 + 20 + 20),  # too few steps to know what the link needs
    ],
)
def test_a_link_needs_its_time_although_threads_get_no_cpu(transfers: tuple[int, ...], queued: int) -> None:
    steps = [
        step([ms * MS], own(compute=ms), number=number)._replace(queues=[ms * MS // 2])
        for number, ms in enumerate(transfers, 1)
    ]
    settled = exchange({0: steps, 1: steps}, width=1)[0]
    assert settled.queue == queued * MS
    assert settled.queue + settled.network == sum(transfers) * MS


def test_shares_of_calls_stay_with_their_calls() -> None:
    """Steps with more calls than words, with fewer, and without any share."""
    steps = [
        step([MS] * 8, number=1)._replace(queues=[0, 0, 0, MS, 0, 0, 0, 0]),
        step([MS] * 4, number=2)._replace(queues=[0, MS, 0, 0]),
        step([MS] * 2, number=3),
    ]
    settled = exchange({0: steps, 1: steps}, width=4)[0]
    assert (settled.queue, settled.network) == ((2 // 2 + 1) * MS, 12 * MS)


def test_a_step_with_a_wait_of_days_stays_unsplit() -> None:
    weekend = 60 * 3600 * 1_000 * MS
    found = exchange({0: [step([3 * MS]), step([weekend])], 1: [step([2 * MS]), step([MS])]})
    assert [(one.network, one.straggler, one.unsplit) for one in found.values()] == [
        (2 * MS, MS, weekend),
        (2 * MS, 0, MS),
    ]


def test_separates_ranks_that_are_late_in_turns_within_a_step() -> None:
    """Over the step both waited for 31 ms, which a minimum of sums would call the transfer."""
    found = exchange({0: [step([30 * MS, 1 * MS])], 1: [step([1 * MS, 30 * MS])]})
    assert [(one.network, one.straggler) for one in found.values()] == [(2 * MS, 29 * MS)] * 2
    assert (found[0].behind, found[1].behind) == ({1: 29 * MS}, {0: 29 * MS})


@pytest.mark.parametrize("noise", [(0, 0, 0), (0, 5, 3), (3, 0, 5), (5, 0, 3), (0, 0, 5), (5, 5, 4)])
@pytest.mark.parametrize("transfer", [0, 1300])
def test_blames_the_rank_with_most_own_time_among_those_that_hid_a_collective(
    noise: tuple[int, ...], transfer: int
) -> None:
    """Rank 0 waits 5000 µs, and noise must not decide which of the others was late. Rank 3 computed longest."""
    waits = [5000, *noise]
    found = exchange(
        {
            rank: [step([(transfer + wait) * US], own(compute=(60 + 10 * (rank == 3)) * MS))] * 8
            for rank, wait in enumerate(waits)
        }
    )
    least = transfer + min(noise)
    assert found[0].behind == {3: 8 * (transfer + 5000 - least) * US}
    assert found[0].late_by == {3: 8 * (transfer + 5000 - least) * US}
    assert [one.network for one in found.values()] == [
        8 * least * US,
        8 * least * US,
        8 * least * US,
        8 * (transfer + noise[2]) * US,  # the wait of the last rank is the transfer
    ]
    assert found[3].late_own == list(own(compute=found[0].behind[3]))
    assert [one.late_steps for one in found.values()] == [0, 0, 0, 8]


def test_waits_in_other_groups_count_as_time_outside_the_group() -> None:
    """Rank 2 arrived last, because it waited elsewhere."""
    elsewhere = (0, 9 * MS, 0, 0, 0, 0, 0, 0)
    late = step([0], own(compute=50 * MS))._replace(elsewhere=elsewhere)
    found = exchange({0: [step([5 * MS], own(compute=50 * MS))], 1: [step([0], own(compute=55 * MS))], 2: [late]})
    assert found[0].behind == {2: 5 * MS}
    assert found[2].late_elsewhere[1] == 5 * MS


@pytest.mark.parametrize("longer", [0, 200])
def test_ranks_that_are_equally_late_are_blamed_in_turn(longer: int) -> None:
    """Rank 0 reads nothing. The others read equally long, or one of them by 0.2 ms of 60 ms longer."""
    ranks = {0: [step([5000 * US], own(compute=50 * MS), number=number) for number in range(1, 401)]}
    for rank in (1, 2, 3):
        spent = own(compute=50 * MS, storage=10 * MS + longer * US * (rank == 2))
        ranks[rank] = [step([0], spent, number=number) for number in range(1, 401)]
    found = exchange(ranks, length=400, width=1)
    assert sum(found[0].behind.values()) == found[0].straggler == 400 * 5 * MS
    shares = [ns / found[0].straggler for _, ns in sorted(found[0].behind.items())]
    assert len(shares) == 3
    assert max(shares) < 0.6
    for rank in (1, 2, 3):
        assert found[rank].late_own == list(own(storage=found[0].behind[rank]))
        assert found[rank].late_steps >= 320  # it is late in each step, although another rank may be blamed


def test_a_real_difference_of_waits_decides_and_not_own_time() -> None:
    """Rank 1 waited 0.1 ms less than rank 2, which computed longer, but was there earlier."""
    found = exchange(
        {
            0: [step([5000 * US])],
            1: [step([300 * US], own(compute=50 * MS))],
            2: [step([400 * US], own(compute=60 * MS))],
        }
    )
    assert found[0].behind == {1: 4700 * US}
    assert [one.network for one in found.values()] == [300 * US] * 3


def test_the_late_rank_is_the_same_if_leaders_of_nodes_compare() -> None:
    """A minimum of minima is the minimum of all, for each word."""
    ranks = {
        rank: [step([(5000 if rank == 0 else rank % 3) * US], own(compute=(60 + 9 * (rank == 4)) * MS))]
        for rank in range(6)
    }
    words = []
    for rank, steps in ranks.items():
        words.append(array("q", bytes(8 * words_of(1, 1))))
        pack(words[-1], rank, steps, 1, 1)
    nodes = [[min(of_all) for of_all in zip(*node, strict=True)] for node in (words[:3], words[3:])]
    result = [min(of_all) for of_all in zip(*nodes, strict=True)]
    assert split(result, 0, sorted(ranks), ranks[0], 1, 1).behind == {4: 5000 * US}


def test_a_step_with_calls_that_some_ranks_did_not_make_stays_unsplit() -> None:
    found = exchange({0: [step([9 * MS]), step([9 * MS])], 1: [step([2 * MS, 1 * MS]), step([2 * MS])]})
    assert [(one.unsplit, one.network) for one in found.values()] == [(9 * MS, 2 * MS), (3 * MS, 2 * MS)]


def test_a_step_that_one_rank_did_not_measure_stays_unsplit_on_all_ranks() -> None:
    found = exchange({0: [step([9 * MS])], 1: [step([2 * MS])._replace(complete=False)]})
    assert [one.unsplit for one in found.values()] == [9 * MS, 2 * MS]


def test_a_truncated_last_block_is_split_up_to_the_steps_that_all_ranks_have() -> None:
    long = [step([9 * MS], number=number) for number in (1, 2, 3)]
    found = exchange({0: long, 1: long[:2]})
    assert [(one.network, one.unsplit, one.through) for one in found.values()] == [
        (18 * MS, 9 * MS, 3),
        (18 * MS, 0, 2),
    ]


def test_more_calls_than_words_are_compared_in_contiguous_runs() -> None:
    """Eight calls in four words: pairs of neighbours. Within a pair, late ranks that take turns cannot be separated."""
    fast = [step([3 * MS] * 4 + [1 * MS] * 4)]
    slow = [step([1 * MS] * 4 + [3 * MS] * 4)]
    found = exchange({0: fast, 1: slow}, width=4)
    assert [(one.network, one.straggler) for one in found.values()] == [(8 * MS, 8 * MS)] * 2
    assert found[0].most_calls == 8


@pytest.mark.parametrize("firsts", [[3, 4], [4, 3]])
def test_every_rank_detects_ranks_out_of_step(firsts: list[int]) -> None:
    for rank in range(2):
        buffers = []
        steps = [[step([MS], number=first)] for first in firsts]
        for other in range(2):
            buffers.append(array("q", bytes(8 * words_of(8, 8))))
            pack(buffers[-1], other, steps[other], 8, 8)
        result = array("q", [min(words) for words in zip(*buffers, strict=True)])
        with pytest.raises(BlockMismatch):
            split(result, rank, (0, 1), steps[rank], 8, 8)


def test_detects_a_result_that_was_never_reduced() -> None:
    for rank in range(2):
        buffer = array("q", bytes(8 * words_of(8, 8)))
        pack(buffer, rank, [step([MS])], 8, 8)
        with pytest.raises(BlockMismatch):
            split(buffer, rank, (0, 1), [step([MS])], 8, 8)


waits = st.integers(0, 10**12)


@given(
    st.integers(1, 12).flatmap(
        lambda calls: st.lists(
            st.lists(
                st.builds(
                    step,
                    st.lists(waits, min_size=calls, max_size=calls),
                    st.tuples(*[waits] * len(LATE_FAMILIES)),
                ),
                min_size=2,
                max_size=2,
            ),
            min_size=2,
            max_size=5,
        )
    )
)
def test_split_preserves_waits_and_blames_no_more_than_the_longest(
    ranks: list[list[StepWaits]],
) -> None:
    found = exchange(dict(enumerate(ranks)))
    for rank, steps in enumerate(ranks):
        settled = found[rank]
        assert settled.network + settled.queue + settled.straggler + settled.unsplit == sum(one.total for one in steps)
        assert sum(settled.behind.values()) == settled.straggler
        assert sum(settled.late_own) + sum(settled.late_elsewhere) == settled.late_by.get(rank, 0)
        assert min(settled.network, settled.straggler, *settled.late_own, *settled.late_elsewhere) >= 0
    assert len({tuple(sorted(one.late_by.items())) for one in found.values()}) == 1


def late(ns: int, one: StepWaits, least: Sequence[int]) -> Settled:
    """What made a rank late by ``ns``, given the least that any rank had of each."""
    settled = Settled(1, MS, 1)
    add_lateness(settled, ns, one, least, NETWORK)
    return settled


def test_lateness_that_no_family_explains_goes_to_the_rest() -> None:
    settled = late(10, step([], own(storage=7)), (*own(storage=3), *NOWHERE))
    assert settled.late_own == list(own(storage=4, network=6))


def test_lateness_that_no_family_explains_is_cpu_for_the_share_of_waits_without_one() -> None:
    one = step([20, 10], own(storage=7))._replace(queues=[5, 5])
    assert late(10, one, (*own(storage=3), *NOWHERE)).late_own == list(own(storage=4, cpu=2, network=4))


def test_lateness_goes_to_the_largest_excesses_first() -> None:
    settled = late(10, step([], own(compute=3, storage=8, host=1)), (*own(), *NOWHERE))
    assert settled.late_own == list(own(storage=8, compute=2))


def test_a_wait_in_another_group_is_part_of_the_lateness() -> None:
    one = step([], own(compute=5))._replace(elsewhere=(0, 9, 0, 0, 0, 0, 0, 0))
    assert late(8, one, (*own(compute=5), *(0, 1, 0, 0, 0, 0, 0, 0))).late_elsewhere[1] == 8


def test_a_rank_is_late_in_a_step_by_its_own_time_only() -> None:
    least = (*own(), *NOWHERE)
    by_itself = step([], own(compute=MS), wall=10 * MS)
    elsewhere = step([], own(), wall=10 * MS)._replace(elsewhere=(0, MS, 0, 0, 0, 0, 0, 0))
    assert (late(MS, by_itself, least).late_steps, late(MS, elsewhere, least).late_steps) == (1, 0)


@pytest.mark.parametrize(
    ("step_seconds", "ranks", "steps"),
    [
        (0.0005, 2, 256),
        (0.005, 2, 128),
        (0.03, 2, 16),
        (0.1, 2, 4),
        (0.3, 2, 2),
        (0.4, 2, 1),
        (30.0, 2, 1),
        (0.0, 2, 256),
        (0.1, 1024, 32),
        (0.1, 8192, 256),
    ],
)
def test_a_block_takes_about_half_a_second_within_its_bounds(step_seconds: float, ranks: int, steps: int) -> None:
    assert block_length(int(step_seconds * 1e9), ranks) == steps


@pytest.mark.parametrize(
    ("step_seconds", "steps"), [(0.005, 128), (0.03, 16), (0.1, 8), (0.7, 8), (1.0, 4), (2.0, 2), (30.0, 1), (0.0, 256)]
)
def test_a_block_with_messages_has_eight_steps_unless_they_take_seconds(step_seconds: float, steps: int) -> None:
    assert messages_block_length(int(step_seconds * 1e9), 4) == steps


@pytest.mark.parametrize(("calls", "width"), [(0, 1), (1, 1), (2, 2), (3, 3), (40, 40), (9000, MOST_WIDTH)])
def test_words_of_a_step_are_bounded(calls: int, width: int) -> None:
    assert width_for(calls) == width


def test_the_slowest_rank_sets_the_length_of_blocks() -> None:
    steps = {rank: [step([MS], wall=wall)] * 8 for rank, wall in enumerate((5 * MS, 40 * MS))}
    assert {one.step_ns for one in exchange(steps).values()} == {40 * MS}
