"""The arithmetic that splits the waits of a pipeline: blocks of several stages, reduced as gloo would."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whyidle.ledger.causes import LATE_FAMILIES
from whyidle.ledger.layout import SLOTS
from whyidle.ledger.messages import (
    MESSAGES,
    Stages,
    Transfer,
    pack_stages,
    pack_times,
    queued,
    sends_first,
    split_stages,
    stages_of,
    stages_words,
    times_words,
    transfers,
)
from whyidle.ledger.waits import BlockMismatch, Message, Settled, StepWaits

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
NOWHERE = (0,) * SLOTS
SLOT = 2
UNATTRIBUTED = LATE_FAMILIES.index("unattributed")
LINK = (0, 1)

Ranks = Mapping[int, list[StepWaits]]


def own(**families: int) -> tuple[int, ...]:
    return tuple(families.get(family, 0) for family in LATE_FAMILIES)


def step(
    calls: Sequence[int] = (),
    own_time: Sequence[int] = own(),
    messages: Sequence[Message] = (),
    *,
    number: int = 1,
    wall: int = 100 * MS,
    complete: bool = True,
) -> StepWaits:
    """One wait per message. If there are fewer messages than waits, the other waits have no peer."""
    peers = [message.peer for message in messages] + [-1] * (len(calls) - len(messages))
    return StepWaits(number, wall, calls, own_time, NOWHERE, peers, messages, complete)


def least(buffers: Sequence[array[int]]) -> array[int]:
    return array("q", [min(words) for words in zip(*buffers, strict=True)])


def times(ranks: Ranks, length: int = 8, clocks: Sequence[int] = ()) -> array[int]:
    """The first round: when messages were issued and received. ``clocks``: the word of each rank's clock."""
    buffers = []
    for rank, steps in ranks.items():
        buffers.append(array("q", bytes(8 * times_words(len(ranks)))))
        pack_times(buffers[-1], rank, sorted(ranks), steps, length, *clocks[rank : rank + 1])
    return least(buffers)


def transfers_of(ranks: Ranks, length: int = 8, clocks: Sequence[int] = ()) -> dict[int, dict[int, Transfer]]:
    result = times(ranks, length, clocks)
    return {rank: transfers(result, rank, sorted(ranks), steps) for rank, steps in ranks.items()}


def floors_of(ranks: Ranks, length: int = 8, clocks: Sequence[int] = ()) -> dict[int, dict[int, int]]:
    """How long a message usually takes."""
    return {
        rank: {peer: transfer.usual for peer, transfer in found.items()}
        for rank, found in transfers_of(ranks, length, clocks).items()
    }


def exchange(ranks: Ranks, length: int = 8, *, cost: int = 0) -> dict[int, Settled]:
    """Both rounds, for every rank. ``cost`` is what transfers cost each of them in a step."""
    found = transfers_of(ranks, length)
    stages = {rank: stages_of(steps, found[rank], cost, LINK) for rank, steps in ranks.items()}
    buffers = []
    for rank, steps in ranks.items():
        buffers.append(array("q", bytes(8 * stages_words(length))))
        pack_stages(buffers[-1], rank, SLOT, (), steps, stages[rank], length)
    result = least(buffers)
    return {rank: split_stages(result, rank, sorted(ranks), SLOT, steps, stages[rank]) for rank, steps in ranks.items()}


def delivered(
    links: Mapping[tuple[int, int], int], clocks: Sequence[int], *, late: int = 0, at: int = SECOND
) -> dict[int, list[Message]]:
    """One message over each directed link, one after the other, in the clock of each rank. It is in transfer for
    ``links[link]`` ns.

    ``late`` is how long the receiver waits before it asks for the message.
    """
    found: dict[int, list[Message]] = {rank: [] for rank in range(len(clocks))}
    issued = at
    for (source, target), transfer in links.items():
        sent, came = issued + clocks[source], issued + transfer + late + clocks[target]
        found[source].append(Message(target, True, sent, sent + 5 * US, 0))
        found[target].append(Message(source, False, came - transfer, came, transfer))
        issued += max(MS, transfer + late)
    return found


def neighbours(ranks: int, transfer: int) -> dict[tuple[int, int], int]:
    """Both directions between neighbours in a row."""
    row = range(ranks - 1)
    return {link: transfer for first in row for link in ((first, first + 1), (first + 1, first))}


def one_step(messages: Mapping[int, list[Message]]) -> dict[int, list[StepWaits]]:
    return {rank: [step([0] * len(found), messages=found)] for rank, found in messages.items()}


# -- the transfer of a link


@pytest.mark.parametrize("clocks", [(0, 0), (0, 7 * SECOND), (3600 * SECOND, 5)])
def test_a_transfer_is_found_whatever_the_offset_of_two_clocks(clocks: tuple[int, int]) -> None:
    ranks = one_step(delivered(neighbours(2, 3 * MS), clocks))
    assert floors_of(ranks) == {0: {1: 3 * MS}, 1: {0: 3 * MS}}


def test_each_link_of_four_stages_has_its_own_transfer() -> None:
    links = neighbours(4, MS) | {(1, 2): 20 * MS, (2, 1): 20 * MS}
    clocks = (0, -900 * MS, 5 * SECOND, 123 * SECOND)
    found = floors_of(one_step(delivered(links, clocks)))
    assert found == {0: {1: MS}, 1: {0: MS, 2: 20 * MS}, 2: {1: 20 * MS, 3: MS}, 3: {2: MS}}


def test_the_last_and_the_first_stage_are_neighbours() -> None:
    """Interleaved schedules send from the last stage to the first."""
    links = neighbours(4, MS) | {(3, 0): 4 * MS, (0, 3): 4 * MS}
    found = floors_of(one_step(delivered(links, (0,) * 4)))
    assert (found[0], found[3]) == ({1: MS, 3: 4 * MS}, {2: MS, 0: 4 * MS})


def test_ranks_of_a_group_do_not_have_to_be_numbered_from_zero() -> None:
    messages = delivered(neighbours(2, 3 * MS), (0, SECOND))
    renamed = {
        4: [message._replace(peer=12) for message in messages[0]],
        12: [message._replace(peer=4) for message in messages[1]],
    }
    assert floors_of(one_step(renamed)) == {4: {12: 3 * MS}, 12: {4: 3 * MS}}


def test_a_link_with_two_different_directions_has_their_mean() -> None:
    """The offset of the clocks is not known more exactly."""
    links = {(0, 1): 2 * MS, (1, 0): 6 * MS}
    assert floors_of(one_step(delivered(links, (0, 0)))) == {0: {1: 4 * MS}, 1: {0: 4 * MS}}


@pytest.mark.parametrize(
    ("clocks", "transfer"),
    [((7, 7), 1 * MS), ((7, 8), 11 * MS), ((), 11 * MS)],
    ids=["one machine", "two machines", "not known"],
)
def test_a_stage_that_asks_late_for_its_messages_has_no_slow_link(clocks: Sequence[int], transfer: int) -> None:
    """As the first stage of DeepSpeed's pipelines, whose receives block: it reads for 20 ms while each gradient waits
    for it. Between two machines this looks the same as a link that needs 20 ms in one direction."""
    first, second = [], []
    for at in (number * 50 * MS for number in range(1, 9)):
        first.append(Message(1, True, at, at + MS, 1 * MS))  # an activation, for which the second stage waits
        second.append(Message(0, False, at - 20 * MS, at + MS, 21 * MS))
        second.append(Message(0, True, at + 10 * MS, at + 31 * MS, 21 * MS))
        first.append(Message(1, False, at + 30 * MS, at + 31 * MS, 1 * MS))
    assert floors_of(one_step({0: first, 1: second}), 1, clocks) == {0: {1: transfer}, 1: {0: transfer}}


def test_a_link_of_one_machine_that_is_slow_in_one_direction_has_both_transfers() -> None:
    links = {(0, 1): 2 * MS, (1, 0): 6 * MS}
    found = transfers_of(one_step(delivered(links, (0, 0))), clocks=(7, 7))
    assert found == {0: {1: Transfer(6 * MS, 2 * MS)}, 1: {0: Transfer(6 * MS, 2 * MS)}}


def test_transfer_of_a_one_way_link_is_the_receivers_shortest_wait() -> None:
    """The offset of the clocks cannot be separated from it."""
    assert floors_of(one_step(delivered({(0, 1): 2 * MS}, (0, SECOND)))) == {0: {1: 2 * MS}, 1: {0: 2 * MS}}


def test_transfer_of_a_one_way_link_is_at_most_that_of_the_other_links() -> None:
    """The receiver may have waited for a late sender: 90 ms, while the other link needs 3 ms."""
    links = {(0, 1): 90 * MS, (1, 2): 3 * MS, (2, 1): 3 * MS}
    found = floors_of(one_step(delivered(links, (0, SECOND, 5 * SECOND))))
    assert found == {0: {1: 3 * MS}, 1: {0: 3 * MS, 2: 3 * MS}, 2: {1: 3 * MS}}


def test_ignores_links_between_stages_that_are_not_neighbours() -> None:
    links = neighbours(4, MS) | {(0, 2): 9 * MS, (2, 0): 9 * MS}
    found = floors_of(one_step(delivered(links, (0,) * 4)))
    assert 2 not in found[0]
    assert 0 not in found[2]
    assert found[1] == {0: MS, 2: MS}


def test_ignores_peers_that_are_unknown_or_outside_the_group() -> None:
    ranks = one_step(delivered(neighbours(2, MS), (0, 0)))
    strange = [Message(-1, False, 1, 2, 1), Message(7, True, 1, 2, 1)]
    ranks[0] = [step([5 * MS, 5 * MS, 0, 0], messages=[*strange, *ranks[0][0].messages])]
    assert floors_of(ranks) == {0: {1: MS}, 1: {0: MS}}
    assert exchange(ranks)[0].network == 0


def test_transfer_is_that_of_the_median_message_of_a_block() -> None:
    """A message that waits for its receiver was not in transfer for all of that time."""
    ways = [delivered(neighbours(2, 3 * MS), (0, SECOND), late=late, at=at * SECOND) for at, late in TIMES]
    ranks = {
        rank: [step([0, 0], messages=way[rank], number=1 + number) for number, way in enumerate(ways)]
        for rank in range(2)
    }
    assert floors_of(ranks)[0] == {1: 3 * MS}


TIMES = ((1, 0), (2, 500 * MS), (3, 0), (4, 0))


def test_a_queued_message_is_in_transfer_from_the_arrival_of_the_one_before() -> None:
    """Four messages of 3 ms each, all issued at once: the last arrives after 12 ms."""
    there = [Message(1, True, SECOND, SECOND + US, 0) for _ in range(4)]
    here = [Message(0, False, SECOND, SECOND + number * 3 * MS, 3 * MS) for number in range(1, 5)]
    back = delivered({(1, 0): 3 * MS}, (0, 0), at=9 * SECOND)
    ranks = one_step({0: [*there, *back[0]], 1: [*here, *back[1]]})
    assert floors_of(ranks) == {0: {1: 3 * MS}, 1: {0: 3 * MS}}


@pytest.mark.parametrize("reverse", [False, True])
def test_messages_are_compared_in_the_order_of_issue_not_of_waits(reverse: bool) -> None:
    first, second = SECOND, SECOND + 20 * MS
    sent = [Message(1, True, at, at + 50 * MS, 0) for at in (first, second)]
    came = [Message(0, False, at - 1, at + 3 * MS, 3 * MS) for at in (first, second)]
    back = [Message(0, True, second, second, 0), Message(1, False, second, second + 3 * MS, 3 * MS)]
    ranks = {
        0: [step([0] * 3, messages=[*(reversed(sent) if reverse else sent), back[1]])],
        1: [step([0] * 3, messages=[*came, back[0]])],
    }
    assert floors_of(ranks) == {0: {1: 3 * MS}, 1: {0: 3 * MS}}


def test_messages_beyond_the_words_are_left_out_on_both_ends() -> None:
    for length, steps in ((8, 8), (256, MESSAGES + 1)):
        ways = [
            [delivered(neighbours(2, 3 * MS), (0, 0), at=(number * 10 + one) * SECOND) for one in range(1, 11)]
            for number in range(steps)
        ]
        ranks = {
            rank: [
                step([0] * 20, messages=[message for way in of_step for message in way[rank]], number=1 + number)
                for number, of_step in enumerate(ways)
            ]
            for rank in range(2)
        }
        assert floors_of(ranks, length) == {0: {1: 3 * MS}, 1: {0: 3 * MS}}


def test_a_rank_that_did_not_wait_for_its_messages_affects_only_its_own_links() -> None:
    ranks = one_step(delivered(neighbours(3, MS), (0, 0, 0)))
    ranks[2] = [step()]
    assert floors_of(ranks) == {0: {1: MS}, 1: {0: MS}, 2: {}}


# -- network, pipeline, and the stage that others waited for


def test_a_slow_link_is_found_although_the_senders_waits_are_zero() -> None:
    """The buffer of a send hides the link from the sender, so only the receivers wait."""
    messages = delivered(neighbours(2, 10 * MS), (0, 44 * SECOND))
    ranks = {
        rank: [
            step([0 if message.sent else 10 * MS for message in messages[rank]], own(compute=50 * MS), messages[rank])
        ]
        for rank in range(2)
    }
    found = exchange(ranks)
    assert [(one.network, one.pipeline, one.behind) for one in found.values()] == [(10 * MS, 0, {})] * 2


def pipeline(waits: Sequence[int], own_times: Sequence[Sequence[int]], microbatches: int = 1) -> dict[int, Settled]:
    """Stages in a row that wait this long in a step, over links that take no time."""
    messages = delivered(neighbours(len(waits), 0), (0,) * len(waits))
    ranks = {}
    for rank, (wait, own_time) in enumerate(zip(waits, own_times, strict=True)):
        sent = messages[rank] * microbatches
        ranks[rank] = [step([wait, *[0] * (len(sent) - 1)], own_time, sent)]
    return exchange(ranks)


def test_stages_wait_for_the_busiest_one_whose_own_waits_are_the_bubble() -> None:
    compute = own(compute=40 * MS)
    found = pipeline(
        [50 * MS, 50 * MS, 10 * MS, 50 * MS], [compute, compute, own(compute=80 * MS), compute], microbatches=16
    )
    for rank in (0, 1, 3):
        assert (found[rank].pipeline, found[rank].network) == (50 * MS, 0)
        assert found[rank].behind == {2: 40 * MS}
        assert not any(found[rank].late_own)
    busiest = found[2]
    assert (busiest.pipeline, busiest.behind) == (10 * MS, {})
    assert (busiest.late_own, busiest.late_steps) == (list(own(compute=40 * MS)), 1)
    assert [one.late_by for one in found.values()] == [{2: 40 * MS}] * 4


def test_the_bubble_is_a_share_of_the_compute_of_the_least_busy_stage() -> None:
    """(p - 1) / m of its compute: with 4 stages and 8 microbatches, 3/8 of 40 ms."""
    found = pipeline([30 * MS, 15 * MS, 15 * MS, 15 * MS], [own(compute=40 * MS)] * 4, microbatches=8)
    assert [one.schedule for one in found.values()] == [15 * MS] * 4
    assert [sum(one.behind.values()) for one in found.values()] == [15 * MS, 0, 0, 0]


@pytest.mark.parametrize(("reads", "schedule"), [(0, [10 * MS, 0]), (15 * MS, [40 * MS] * 2)])
def test_a_stage_without_room_for_its_bubble_is_not_in_a_pipeline(reads: int, schedule: list[int]) -> None:
    """Two ranks send to each other once in a step and compute for 40 ms. If they were a pipeline with one microbatch,
    each would wait for 40 ms in a step, or read meanwhile. Otherwise only waits for messages count as bubble."""
    late = own(compute=40 * MS, storage=reads)
    found = pipeline([10 * MS, 0], [late, late], microbatches=1)
    assert [one.schedule for one in found.values()] == schedule


def test_a_balanced_pipeline_blames_nobody() -> None:
    found = pipeline([15 * MS] * 4, [own(compute=40 * MS)] * 4, microbatches=8)
    assert [(one.pipeline, one.behind, one.late_by) for one in found.values()] == [(15 * MS, {}, {})] * 4


def test_a_stage_that_reads_is_late_because_of_storage() -> None:
    found = pipeline([40 * MS, 0], [own(compute=40 * MS), own(compute=40 * MS, storage=40 * MS)], microbatches=400)
    assert found[0].behind.keys() == {1}
    assert found[1].late_own[LATE_FAMILIES.index("storage")] == pytest.approx(40 * MS, rel=0.01)


def test_reads_of_the_busiest_stage_delay_the_others_in_full() -> None:
    """It computes less than the other one, and therefore waits for 30 ms itself. That is its own part of the schedule:
    without its reads, the other one would wait for 10 ms, not for 30."""
    reader, other = own(compute=20 * MS, storage=40 * MS), own(compute=40 * MS)
    found = pipeline([30 * MS, 50 * MS], [reader, other], microbatches=400)
    assert found[1].behind == {0: 40 * MS}
    assert found[0].late_own == list(own(storage=40 * MS))


def test_reads_of_a_stage_that_is_not_the_busiest_delay_nobody() -> None:
    reader, other = own(compute=20 * MS, storage=10 * MS), own(compute=40 * MS)
    found = pipeline([20 * MS, 10 * MS], [reader, other], microbatches=400)
    assert found[0].behind == {1: 10 * MS}
    assert (found[1].behind, found[1].late_own) == ({}, list(own(compute=10 * MS)))


def test_a_stage_behind_a_slow_link_is_late_because_of_its_transfers() -> None:
    """It is not late because of its own time: its wait on the link is `elsewhere`, in this slot."""
    links = neighbours(3, 0) | {(1, 2): 30 * MS, (2, 1): 30 * MS}
    messages = delivered(links, (0, 0, 0))
    waits = {0: [40 * MS, 0], 1: [0, 0, 0, 30 * MS], 2: [30 * MS, 0]}
    ranks = {rank: [step(waits[rank], own(compute=MS), messages[rank])] for rank in range(3)}
    found = exchange(ranks)
    late = next(rank for rank, one in found.items() if any(one.late_own) or any(one.late_elsewhere))
    assert late in (1, 2)
    assert found[late].late_elsewhere[SLOT] == pytest.approx(30 * MS, rel=0.1)
    assert found[0].behind.keys() == {late}


def test_transfer_cost_beyond_own_messages_is_neither_bubble_nor_lateness() -> None:
    """Two stages wait for 40 and 50 ms. Transfers cost 30 ms of these, and the messages of both were in transfer for 8
    ms."""
    messages = delivered(neighbours(2, 4 * MS), (0, 0))
    ranks = {
        rank: [step([wait * MS, 4 * MS], own(compute=10 * MS), messages[rank])] for rank, wait in ((0, 36), (1, 46))
    }
    without, found = exchange(ranks), exchange(ranks, cost=30 * MS)
    for rank, waited in ((0, 40 * MS), (1, 50 * MS)):
        one = found[rank]
        assert (one.network, one.pipeline, one.latency) == (8 * MS, waited - 8 * MS, 22 * MS)
        assert one.link == LINK
        assert without[rank].latency == 0
    assert found[1].behind == without[1].behind == {0: 10 * MS}
    assert [one.schedule for one in found.values()] == [10 * MS] * 2


def test_transfer_cost_excludes_the_cpu_queue_of_own_threads() -> None:
    """A message can take 1 ms, but usually takes 4 ms. 3/4 of the 2 ms in which threads queued in them belong to the
    CPU, so that the replay's 10 ms are 3.5 ms more than the transfers."""
    ways = [delivered(neighbours(2, took * MS), (0, 0), at=at * SECOND) for at, took in ((1, 1), (2, 4), (3, 4))]
    waits = ([0, 0], [40 * MS, 4 * MS], [0, 0])
    queues = ([0, 0], [2 * MS, 0], [0, 0])
    ranks = {
        rank: [
            step(wait, own(), way[rank], number=number)._replace(queues=queue)
            for number, (wait, way, queue) in enumerate(zip(waits, ways, queues, strict=True), start=1)
        ]
        for rank in range(2)
    }
    for one in exchange(ranks, cost=10 * MS).values():
        assert (one.queue, one.network, one.latency) == (1.5 * MS, 6.5 * MS, 3.5 * MS)


def test_threads_that_queue_while_a_message_is_on_a_slow_link_do_not_shorten_its_transfer() -> None:
    """All messages take 4 ms, with and without a free CPU."""
    messages = delivered(neighbours(2, 4 * MS), (0, 0))
    ranks = {rank: [step([40 * MS, 4 * MS], own(), messages[rank])._replace(queues=[3 * MS, 0])] for rank in range(2)}
    for one in exchange(ranks, cost=10 * MS).values():
        assert (one.queue, one.network, one.latency, one.pipeline) == (0, 8 * MS, 2 * MS, 36 * MS)


@pytest.mark.parametrize(
    ("queue", "transfer", "least", "wanted"),
    [(3, 12, 12, 0), (3, 12, 20, 0), (3, 12, 4, 2), (3, 12, 0, 3), (30, 12, 4, 20), (3, 0, 0, 0), (3, -2, 0, 0)],
)
def test_a_queue_counts_as_far_as_the_transfer_is_longer_than_the_link_needs(
    queue: int, transfer: int, least: int, wanted: int
) -> None:
    assert queued(queue, transfer, least) == wanted


def test_a_step_that_one_stage_did_not_measure_stays_unsplit_on_all_stages() -> None:
    found = exchange({0: [step([9 * MS])], 1: [step([2 * MS], complete=False)]})
    assert [(one.unsplit, one.pipeline, one.network) for one in found.values()] == [(9 * MS, 0, 0), (2 * MS, 0, 0)]


def test_a_truncated_last_block_is_split_up_to_the_steps_that_all_stages_have() -> None:
    messages = delivered(neighbours(2, MS), (0, 0))
    long = [step([4 * MS, 4 * MS], messages=messages[0], number=number) for number in (1, 2, 3)]
    short = [step([4 * MS, 4 * MS], messages=messages[1], number=number) for number in (1, 2)]
    found = exchange({0: long, 1: short})
    assert [(one.network, one.pipeline, one.unsplit, one.through) for one in found.values()] == [
        (4 * MS, 12 * MS, 8 * MS, 3),
        (4 * MS, 12 * MS, 0, 2),
    ]


def test_detects_stages_out_of_step_in_both_rounds() -> None:
    ranks = {0: [step([MS], number=3)], 1: [step([MS], number=4)]}
    result = times(ranks)
    stages = Stages([0], [MS], [1], [0], [0])
    for rank, steps in ranks.items():
        with pytest.raises(BlockMismatch):
            transfers(result, rank, (0, 1), steps)
        buffer = array("q", bytes(8 * stages_words(8)))
        pack_stages(buffer, rank, SLOT, (), steps, stages, 8)
        with pytest.raises(BlockMismatch):
            split_stages(buffer, rank, (0, 1), SLOT, steps, stages)


moments = st.integers(0, 10**15)
waits = st.integers(0, 10**12)


def exchanged(waits: Sequence[int], own_times: Sequence[Sequence[int]]) -> dict[int, Settled]:
    """Neighbours on a ring, all of which send first. They wait this long for what the rank before them sends."""
    count = len(waits)
    ranks = {}
    for rank, (wait, own_time) in enumerate(zip(waits, own_times, strict=True)):
        sent = SECOND + max(waits) - wait
        received = SECOND + max(waits) + US
        messages = [
            Message((rank + 1) % count, True, sent, sent + US, 0),
            Message((rank - 1) % count, False, sent, received, wait),
        ]
        ranks[rank] = [step([0, wait], own_time, messages)]
    return exchange(ranks)


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_that_all_send_first_have_no_schedule_and_wait_for_the_late_one(count: int) -> None:
    late = own(compute=40 * MS, storage=30 * MS)
    found = exchanged([0, *[30 * MS] * (count - 1)], [late, *[own(compute=40 * MS)] * (count - 1)])
    for rank in range(1, count):
        one = found[rank]
        assert (one.straggler, one.pipeline, one.network, one.schedule) == (30 * MS, 0, 0, 0)
        assert one.behind == {0: 30 * MS}
    assert (found[0].behind, found[0].late_own) == ({}, list(own(storage=30 * MS)))


def test_a_send_of_the_step_before_does_not_make_a_ring_of_a_pipeline() -> None:
    late = Message(1, True, SECOND - 9 * MS, SECOND - 5 * MS, MS)
    received, sent = Message(1, False, SECOND, SECOND + MS, MS), Message(1, True, SECOND + 2 * MS, SECOND + 3 * MS, MS)
    assert not sends_first(step([MS] * 3, messages=[late, received, sent]))
    assert sends_first(step([MS] * 2, messages=[received._replace(end=SECOND + 4 * MS), sent]))


def test_what_all_ranks_that_send_first_have_waited_stays_unsplit() -> None:
    found = exchanged([10 * MS, 15 * MS], [own(compute=40 * MS)] * 2)
    assert [one.schedule for one in found.values()] == [0, 0]
    assert (found[0].unsplit + found[0].network, found[0].straggler) == (10 * MS, 0)
    assert found[1].unsplit + found[1].network == pytest.approx(12.5 * MS, abs=US)  # a transfer of 12.5 ms
    assert found[1].straggler == pytest.approx(2.5 * MS, abs=US)


@st.composite
def pipelines(draw: st.DrawFn) -> dict[int, list[StepWaits]]:
    """Anything that ranks may have seen: messages to any rank, in any number, with any times."""
    count = draw(st.integers(2, 5))

    def one(number: int) -> StepWaits:
        calls = draw(st.lists(waits, max_size=6))
        messages = [
            Message(draw(st.integers(-1, count)), draw(st.booleans()), draw(moments), draw(moments), draw(waits))
            for _ in calls
        ]
        own_time = draw(st.tuples(*[waits] * len(LATE_FAMILIES)))
        return step(calls, own_time, messages, number=number, complete=draw(st.integers(0, 9)) > 0)

    return {rank: [one(number) for number in range(1, draw(st.integers(1, 2)) + 1)] for rank in range(count)}


@settings(deadline=None, max_examples=40)
@given(pipelines(), st.integers(0, 10**13))
def test_split_preserves_waits_and_blames_no_more_than_was_waited(ranks: dict[int, list[StepWaits]], cost: int) -> None:
    for rank, settled in exchange(ranks, cost=cost).items():
        parts = settled.network, settled.pipeline, settled.straggler, settled.unsplit, settled.queue
        assert sum(parts) == sum(one.total for one in ranks[rank])
        assert 0 <= settled.latency <= min(settled.pipeline, cost * len(ranks[rank]))
        assert settled.straggler <= sum(settled.behind.values())
        assert sum(settled.behind.values()) <= settled.straggler + settled.pipeline - settled.latency
        assert settled.schedule >= 0
        assert rank not in settled.behind
        assert sum(settled.late_own) + sum(settled.late_elsewhere) == settled.late_by.get(rank, 0)
        parts = (settled.network, settled.unsplit, *settled.late_own, *settled.late_elsewhere)
        assert min(parts, default=0) >= 0
