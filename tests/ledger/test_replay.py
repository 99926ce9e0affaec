"""One step of a pipeline, replayed with and without its transfers: sequences made by hand, reduced as gloo would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whyidle.ledger.layout import SLOTS
from whyidle.ledger.messages import Link
from whyidle.ledger.replay import (
    FIRST_CAPACITY,
    MOST_MESSAGES,
    Replayed,
    _plan_of,
    capacity_of,
    first_capacity,
    replayed,
    sequence_size,
    sequence_words,
    steps_to_replay,
)
from whyidle.ledger.waits import NOTHING, Message, StepWaits

MS, SECOND = 1_000_000, 1_000_000_000
NORM = 0
"""The slot of a collective of the whole pipeline."""

Links = Mapping[tuple[int, int], Link]
Told = Mapping[int, StepWaits | None]


def step(messages: Sequence[Message], wall: float, *, together: float = 0, complete: bool = True) -> StepWaits:
    """``wall`` and ``together`` in ms."""
    elsewhere = [0] * SLOTS
    elsewhere[NORM] = int(together * MS)
    calls = [message.ns for message in messages]
    peers = [message.peer for message in messages]
    return StepWaits(7, int(wall * MS), calls, (), elsewhere, peers, messages, complete)


def sent(peer: int, issued: float, end: float | None = None, *, clock: int = SECOND, queue: float = 0) -> Message:
    """Times in ms. The sender waits for it at once."""
    end = issued if end is None else end
    ns = int((end - issued) * MS)
    return Message(peer, True, clock + int(issued * MS), clock + int(end * MS), ns, int(queue * MS))


def received(peer: int, issued: float, end: float, *, clock: int = SECOND, queue: float = 0) -> Message:
    return sent(peer, issued, end, clock=clock, queue=queue)._replace(sent=False)


def links(transfers: Mapping[tuple[int, int], float], clocks: Sequence[int] = (0,) * 8) -> dict[tuple[int, int], Link]:
    """Transfers in ms, in both directions."""
    found = {}
    for (one, other), transfer in transfers.items():
        offset = (clocks[other] - clocks[one]) // 1000
        found[one, other] = Link(offset, int(transfer * 1000))
        found[other, one] = Link(-offset, int(transfer * 1000))
    return found


def told(steps: Told, capacity: int = 32) -> list[int]:
    ranks = sorted(steps)
    said = [sequence_words(rank, ranks, one, (NORM,), capacity) for rank, one in steps.items()]
    return [min(words) for words in zip(*said, strict=True)]


def replay(steps: Told, known: Links, capacity: int = 32) -> Replayed | None:
    return replayed(told(steps, capacity), sorted(steps), known, capacity)


def there_and_back(*, clock: int = 0, queue: float = 0) -> dict[int, StepWaits]:
    """5 ms of compute on each of two stages, and a message of 10 ms each way: a step takes 30 ms."""
    return {
        0: step([sent(1, 5), received(1, 5, 30, queue=queue)], 30),
        1: step([received(0, -10, 15, clock=SECOND + clock, queue=queue), sent(0, 20, clock=SECOND + clock)], 30),
    }


# -- what transfers cost


@pytest.mark.parametrize("ahead", [0, 1234 * SECOND, -SECOND // 2])
def test_transfer_cost_is_the_wait_that_both_ends_save_without_transfers(ahead: int) -> None:
    """Each waits for 25 ms, of which 5 ms are the compute of the other stage: the bubble."""
    found = replay(there_and_back(clock=ahead), links({(0, 1): 10}, (0, ahead)))
    assert found == Replayed((20 * MS, 20 * MS), (0, 1))


def test_a_stage_beyond_a_slow_link_waits_for_it_too() -> None:
    """Three stages with only 1 ms of compute each; 20 ms each way between the first two, and no time after that."""
    steps = {
        0: step([sent(1, 1), received(1, 1, 44)], 44),
        1: step([received(0, -21, 21), sent(2, 22), received(2, 22, 23), sent(0, 24)], 44),
        2: step([received(1, -21, 22), sent(1, 23)], 44),
    }
    found = replay(steps, links({(0, 1): 20, (1, 2): 0}))
    assert found is not None
    assert found.cost == pytest.approx([40 * MS, 40 * MS, 40 * MS], abs=2 * MS)
    assert found.link == (0, 1)


def test_names_ranks_and_not_stages() -> None:
    renamed = {
        5: there_and_back()[0]._replace(messages=[sent(9, 5), received(9, 5, 30)]),
        9: there_and_back()[1]._replace(messages=[received(5, -10, 15), sent(5, 20)]),
    }
    found = replay(renamed, links({(0, 1): 10}))
    assert found is not None
    assert found.link == (5, 9)


def test_a_late_stage_costs_no_transfers() -> None:
    """Stage 1 computes for 100 ms, and messages take no time."""
    steps = {
        0: step([sent(1, 5), received(1, 5, 105)], 105),
        1: step([received(0, 0, 5), sent(0, 105)], 105),
    }
    assert replay(steps, links({(0, 1): 0})) == Replayed((0, 0), (0, 1))


def test_a_send_that_ends_when_its_receiver_asks_costs_no_transfer() -> None:
    """Rendezvous: stage 0 waits for stage 1, which computes for 50 ms before it asks."""
    steps = {
        0: step([sent(1, 0, 50), received(1, 50, 60)], 60),
        1: step([received(0, 50, 50), sent(0, 60)], 60),
    }
    assert replay(steps, links({(0, 1): 1})) == Replayed((0, 0), (0, 1))


def test_a_send_that_ends_before_its_receiver_asks_was_held_up_by_the_link() -> None:
    """A small buffer drains for 10 ms. The receiver computes for 50 ms and finds the message there."""
    steps = {
        0: step([sent(1, 0, 10), received(1, 10, 60)], 60),
        1: step([received(0, 50, 50), sent(0, 60)], 60),
    }
    found = replay(steps, links({(0, 1): 10}))
    assert found is not None
    assert found.cost == (0, 0)  # without it, stage 0 would also have waited for stage 1


def four_messages(*, took: float, queue: float) -> dict[int, StepWaits]:
    """There and back twice, with 5 ms of compute before each message. Three take 2 ms, and the last ``took`` ms, in
    which threads of its receiver got no CPU for ``queue`` ms."""
    end = 26 + took
    return {
        0: step([sent(1, 5), received(1, 5, 14), sent(1, 19), received(1, 19, end, queue=queue)], end),
        1: step([received(0, -took, 7), sent(0, 12), received(0, 12, 21), sent(0, 26)], end),
    }


def test_time_without_a_cpu_is_not_transfer() -> None:
    """A message can take 2 ms. One took 10, so 4/5 of the time without a CPU made it longer."""
    usual = links({(0, 1): 10})
    without = replay(four_messages(took=10, queue=0), usual)
    assert without == Replayed((16 * MS, 16 * MS), (0, 1))
    assert replay(four_messages(took=10, queue=5), usual) == Replayed((12 * MS, 12 * MS), (0, 1))


def test_time_without_a_cpu_is_transfer_while_the_link_is_busy() -> None:
    """Each message takes 10 ms, with and without a free CPU."""
    found = replay(there_and_back(queue=4), links({(0, 1): 10}))
    assert found == Replayed((20 * MS, 20 * MS), (0, 1))


@pytest.mark.parametrize(("usual", "queue"), [(8, 0), (10, 6)])
def test_a_message_may_take_longer_if_another_one_is_ahead_of_its_request(usual: float, queue: float) -> None:
    """Messages take 10 ms. Stage 1 asks for the second one at 20 ms, when its answer to the first one has been on its
    way for 1 ms. So the request arrives at 29 ms, and the message at 39 ms. Threads that queue do not make that longer.
    """
    steps = {
        0: step([sent(1, 1), sent(1, 1), received(1, 1, 29), received(1, 29, 50)], 50),
        1: step([received(0, -10, 11), sent(0, 19), received(0, 20, 39, queue=queue), sent(0, 40)], 50),
    }
    found = replay(steps, links({(0, 1): usual}))
    assert found == Replayed((39 * MS, 39 * MS), (0, 1))


def test_a_stall_without_a_cpu_is_not_a_transfer_behind_another_message() -> None:
    """Messages need 1 ms. Then no thread gets a CPU for 80 ms, while one message is on its way in each direction."""
    steps = {
        0: step([sent(1, 1), sent(1, 1), received(1, 1, 91, queue=80), received(1, 91, 95)], 95),
        1: step([received(0, -2, 2), sent(0, 10), received(0, 11, 93, queue=80), sent(0, 94)], 95),
    }
    usual = links({(0, 1): 1})
    plan = _plan_of(told(steps), 2, usual, 32)
    assert plan is not None
    with_transfers, without = plan.times.arrive
    assert max(with_transfers) == 4000  # µs
    assert max(took - rest for took, rest in zip(with_transfers, without, strict=True)) == 1000


# -- several steps


def test_cost_is_the_mean_of_all_steps() -> None:
    """One step has transfers of 10 ms, the other one has none."""
    quick = {
        0: step([sent(1, 5), received(1, 5, 10)], 10),
        1: step([received(0, 0, 5), sent(0, 10)], 10),
    }
    known = links({(0, 1): 10})
    words = told(there_and_back()) + told(quick)
    assert replayed(words, (0, 1), known, 32, 2) == Replayed((10 * MS, 10 * MS), (0, 1))


def test_steps_that_are_not_known_are_left_out_if_they_are_at_most_half() -> None:
    known, unknown = told(there_and_back()), told({**there_and_back(), 1: None})
    cost = Replayed((20 * MS, 20 * MS), (0, 1))
    for words, wanted in ((unknown + known, cost), (unknown + known + unknown, None), (unknown + unknown, None)):
        assert replayed(words, (0, 1), links({(0, 1): 10}), 32, len(words) // len(known)) == wanted


@pytest.mark.parametrize(
    ("length", "stages", "capacity", "wanted"),
    [
        (8, 4, 16, [1, 3, 5, 7]),
        (256, 4, 16, [32, 96, 160, 224]),
        (8, 4, 64, [2, 6]),
        (8, 4, 128, [4]),
        (8, 64, 8, [4]),
        (8, 4, 0, [4]),
        (2, 2, 2, [0, 1]),
    ],
)
def test_steps_to_replay_are_spread_over_the_block(length: int, stages: int, capacity: int, wanted: list[int]) -> None:
    found = steps_to_replay(length, stages, capacity)
    assert found == wanted
    assert len(found) * stages * capacity <= MOST_MESSAGES


def test_transfer_time_of_a_message_is_bounded_by_its_link() -> None:
    """10 ms instead of the usual 1 ms: the replay finds 2 ms, which is much less than the wait."""
    assert replay(there_and_back(), links({(0, 1): 1})) is None


@pytest.mark.parametrize("clock", [0, 99 * SECOND])
def test_stages_in_a_collective_start_each_step_at_measured_times(clock: int) -> None:
    """The last stage has waited in a norm for the end of the first one. That wait is not its own time."""
    steps = {
        0: step([sent(1, 5), received(1, 5, 30)], 31, together=0),
        1: step([received(0, 1, 15, clock=SECOND + clock), sent(0, 20, clock=SECOND + clock)], 31, together=10),
    }
    found = replay(steps, links({(0, 1): 10}, (0, clock)))
    assert found is not None
    assert found.cost == (20 * MS, 10 * MS)


# -- what cannot be known


def test_no_result_if_a_stage_sends_nothing() -> None:
    whole = there_and_back()
    known = links({(0, 1): 10})
    unknown = whole[1]._replace(messages=[received(-1, -10, 15), sent(0, 20)])
    long = whole[1]._replace(messages=[received(0, -3_000_000, 15), sent(0, 20)])
    for other in (None, whole[1]._replace(complete=False), whole[1]._replace(messages=()), unknown, long):
        assert replay({0: whole[0], 1: other}, known) is None


def test_no_result_if_the_ends_of_a_link_have_different_messages() -> None:
    whole = there_and_back()
    more = whole[1]._replace(messages=[*whole[1].messages, sent(0, 21)])
    assert replay({0: whole[0], 1: more}, links({(0, 1): 10})) is None


def test_no_result_for_links_whose_clocks_cannot_be_compared() -> None:
    """They are used in one direction only, so only the length of a wait is known."""
    assert replay(there_and_back(), {}) is None


def test_no_result_if_the_stages_would_block_each_other() -> None:
    """Each stage sends after it has received. No clocks of real ranks show this."""
    steps = {
        0: step([received(1, 0, 10), sent(1, 11)], 12),
        1: step([received(0, 0, 10), sent(0, 11)], 12),
    }
    assert replay(steps, links({(0, 1): 1})) is None


def test_no_result_for_more_messages_than_there_is_room_for() -> None:
    steps = there_and_back()
    assert replay(steps, links({(0, 1): 10}), capacity=1) is None
    assert capacity_of(told(steps, 1), 2, 1) == 2


def test_room_of_the_next_block_depends_on_the_messages_of_this_one() -> None:
    def many(count: int) -> StepWaits:
        return step([sent(1, number) for number in range(count)], 99)

    for capacity in (0, 8, 64):
        for count, wanted in ((1, 1), (9, 16), (64, 64), (65, 128), (256, 256), (257, 0)):
            assert capacity_of(told({0: many(count), 1: many(1)}, capacity), 2, capacity) == wanted
        assert capacity_of(told({0: None, 1: None}, capacity), 2, capacity) == capacity


@pytest.mark.parametrize("stages", [2, 4, 16, 64])
def test_the_room_is_bounded_whatever_the_number_of_stages(stages: int) -> None:
    assert 0 < first_capacity(stages) <= FIRST_CAPACITY
    assert first_capacity(stages) * stages <= MOST_MESSAGES
    assert len(told(dict.fromkeys(range(stages)), 4)) == sequence_size(stages, 4)


# -- invalid input

words = st.one_of(st.integers(-(1 << 63), NOTHING), st.integers(0, 6), st.just(NOTHING), st.integers(0, 1 << 40))


@settings(deadline=None, max_examples=200)
@given(st.data(), st.integers(2, 4), st.integers(0, 3))
def test_arbitrary_published_words_neither_raise_nor_give_negative_costs(
    data: st.DataObject, stages: int, capacity: int
) -> None:
    size = sequence_size(stages, capacity)
    result = data.draw(st.lists(words, min_size=size, max_size=size))
    known = data.draw(
        st.dictionaries(
            st.tuples(st.integers(0, stages - 1), st.integers(0, stages - 1)),
            st.builds(Link, st.integers(-(1 << 63), 1 << 63), st.integers(0, 1 << 63)),
        )
    )
    assert 0 <= capacity_of(result, stages, capacity) <= MOST_MESSAGES
    check(replayed(result, range(stages), known, capacity), stages)


times = st.integers(-(10**4), 10**7)


@settings(deadline=None, max_examples=200)
@given(st.data(), st.integers(2, 4))
def test_arbitrary_messages_neither_raise_nor_give_negative_costs(data: st.DataObject, stages: int) -> None:
    """Ends that match, at any times."""
    ends: dict[int, list[Message]] = {rank: [] for rank in range(stages)}
    for _ in range(data.draw(st.integers(0, 5))):
        source = data.draw(st.integers(0, stages - 1))
        target = (source + data.draw(st.integers(0, stages - 1))) % stages
        for rank, peer, sends in ((source, target, True), (target, source, False)):
            issued, end, ns = data.draw(times), data.draw(times), data.draw(times)
            ends[rank].append(Message(peer, sends, issued, end, ns, data.draw(times)))
    steps = {
        rank: step(messages, data.draw(times), together=data.draw(st.sampled_from([0, 0, 5])))
        for rank, messages in ends.items()
    }
    every = {(one, one + 1): data.draw(st.integers(0, 9)) for one in range(stages - 1)}
    check(replay(steps, links(every)), stages)


def check(found: Replayed | None, stages: int) -> None:
    if found is not None:
        assert len(found.cost) == stages
        assert min(found.cost) >= 0
        assert set(found.link) <= set(range(stages))
