"""The account of a rank: the cause of an interval, how a step closes, and how held-back waits are settled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whyidle.ledger.causes import CAUSE, CAUSES, LATE_FAMILIES, PHASE, PHASES, STEP_BUCKETS_SECONDS
from whyidle.ledger.layout import RING_CALLS, RING_STEPS, STEP_WORDS, WORD_AT, Call, link_of
from whyidle.ledger.reader import Step, parse_ledger
from whyidle.ledger.waits import Message, StepWaits
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks.books import _MOST_WAITS, Books
from whyidle.torch_hooks.machine import COMPUTE, EVAL, HOST, NOT_ENTERED, STARTUP, PhaseMachine
from whyidle.torch_hooks.wait_codes import CONTINUES, LEAST, UNKNOWN_WAIT, Issue, slot_of, wait_code

DATA, CHECKPOINT, GC = PHASE["data"], PHASE["checkpoint"], PHASE["gc"]
WORLD, OTHER = wait_code(0), wait_code(1)


@pytest.fixture
def words(tmp_path: Path) -> Iterator[memoryview]:
    writer = new_writer(tmp_path)
    yield writer.words
    writer.close()


def new_writer(directory: Path) -> LedgerWriter:
    strings = {"run": "r", "node": "n", "device": "cpu", "uuid": ""}
    return LedgerWriter(str(directory), strings, {"rank": 0, "world_size": 2, "device_index": -1})


def cause(words: memoryview, name: str) -> int:
    return words[WORD_AT["cause_ns"][0] + CAUSE[name]]


def word(words: memoryview, name: str) -> int:
    return words[WORD_AT[name][0]]


def pending(books: Books, slot: int) -> Sequence[StepWaits]:
    """The closed steps of a slot whose waits are pending."""
    books.sort()
    held = books.held[slot]
    assert held is not None
    return held.steps


def ring(words: memoryview) -> list[Step]:
    """The ring as a reader sees it."""
    return parse_ledger(bytes(words), "here", alive=True).ring


def spent(step: Step) -> dict[str, int]:
    return {cause: ns for cause, ns in zip(CAUSES, step.causes, strict=True) if ns}


def total(words: memoryview) -> int:
    at, count = WORD_AT["cause_ns"]
    return sum(words[at : at + count].tolist()) + word(words, "pending_ns")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(30, 10, (30, 10, 60)), (80, 80, (80, 20, 0))],
    ids=["the last takes the rest", "clamped in their order"],
)
def test_parts_split_an_interval(first: int, second: int, expected: tuple[int, int, int], words: memoryview) -> None:
    parts = ((CAUSE["data_cpu"], first), (CAUSE["data_queue"], second), (CAUSE["data_read"], -1))
    Books(words).charge(DATA, 100, parts)
    assert (cause(words, "data_cpu"), cause(words, "data_queue"), cause(words, "data_read")) == expected


def test_a_step_is_in_the_histogram_and_in_the_ring(words: memoryview) -> None:
    books = Books(words)
    books.open_window(1_000)
    books.charge(COMPUTE, 3_000_000)
    books.charge_wait(WORLD, 1_000_000)
    books.close_step(4_001_000)
    (step,) = ring(words)
    assert (step.number, step.end_ns, step.wall_ns) == (1, 4_001_000, 4_000_000)
    assert spent(step) == {"compute": 3_000_000, "collective": 1_000_000}
    buckets = words[WORD_AT["step_buckets"][0] :][: len(STEP_BUCKETS_SECONDS) + 1].tolist()
    assert buckets[STEP_BUCKETS_SECONDS.index(0.005)] == 1
    assert sum(buckets) == 1


def test_a_step_on_a_bucket_bound_counts_as_below_it(words: memoryview) -> None:
    books = Books(words)
    books.open_window(0)
    books.close_step(5_000_000)
    assert words[WORD_AT["step_buckets"][0] + STEP_BUCKETS_SECONDS.index(0.005)] == 1


def test_the_ring_keeps_the_newest_steps(words: memoryview) -> None:
    books = Books(words)
    books.open_window(0)
    for number in range(1, RING_STEPS + 3):
        books.charge(COMPUTE, 10)
        books.close_step(number * 10)
    steps = ring(words)
    # Two entries are needed for one step, so the oldest step in a full ring is lost.
    assert [step.number for step in steps] == list(range(4, RING_STEPS + 3))
    assert all(spent(step) == {"compute": 10} for step in steps)


def slot_word(words: memoryview, name: str, slot: int = 0) -> int:
    return words[WORD_AT[f"slot_{name}"][0] + slot]


def test_a_step_that_does_not_end_keeps_a_bounded_number_of_waits_and_moves(words: memoryview) -> None:
    """As in an evaluation without steps: the rest of the waits is not split, and batches of one kind are one move."""
    books = Books(words)
    books.hold(0, (), whole=True)
    books.open_window(1)
    for _ in range(_MOST_WAITS + 100):
        books.charge(COMPUTE, 3)
        books.charge_wait(WORLD, 10)
        books.reclassify(0, COMPUTE, EVAL, 2)
    assert (len(books._waits), len(books._moves)) == (_MOST_WAITS, 1)
    assert slot_word(words, "unsplit_ns") == 1000
    books.close_step(1 + 13 * (_MOST_WAITS + 100))
    assert cause(words, "evaluation") == 2 * (_MOST_WAITS + 100)
    whole = sum(cause(words, name) for name in CAUSES) + word(words, "pending_ns")
    assert whole == 13 * (_MOST_WAITS + 100)


def test_held_back_waits_are_pending_until_they_are_settled(words: memoryview) -> None:
    books = Books(words)
    books.hold(0, (), whole=True)
    books.charge_wait(WORLD, 5)  # before the first step: there is nothing to compare it with
    books.open_window(5)
    books.charge(COMPUTE, 50)
    books.charge_wait(WORLD, 30)
    books.charge_wait(WORLD, 10)
    books.close_step(95)
    assert (word(words, "pending_ns"), cause(words, "collective")) == (40, 5)
    (step,) = pending(books, 0)
    assert (step.calls, step.total) == ([30, 10], 40)
    assert step.own[LATE_FAMILIES.index("compute")] == 50
    books.settle(0, {"network": 30, "straggler": 10}, through=1)
    assert (word(words, "pending_ns"), cause(words, "network"), cause(words, "straggler")) == (0, 30, 10)
    assert [slot_word(words, part) for part in ("network_ns", "straggler_ns", "pending_ns", "settled")] == [
        30,
        10,
        0,
        1,
    ]
    assert spent(ring(words)[0]) == {"compute": 50, "collective": 40}


def test_what_came_before_the_first_wait_can_have_made_the_rank_late_in_it(words: memoryview) -> None:
    """A group is found when the rank first waits in it. By then, the rank has loaded the batch of the open step."""
    books = Books(words)
    books.charge(COMPUTE, 7)
    books.open_window(7)
    books.charge(COMPUTE, 60)
    books.hold(0, (), whole=True)
    books.charge_wait(WORLD, 40)
    books.close_step(107)
    books.charge(COMPUTE, 20)
    books.hold(1, (), whole=True)  # another group, in a later step
    books.charge_wait(OTHER, 10)
    books.charge_wait(WORLD, 5)
    books.close_step(142)
    compute = LATE_FAMILIES.index("compute")
    assert [step.own[compute] for step in pending(books, 0)] == [60, 20]
    assert [step.own[compute] for step in pending(books, 1)] == [20]


def test_a_settlement_does_not_count_in_the_step_in_which_it_arrives(words: memoryview) -> None:
    books = Books(words)
    books.hold(0, (), whole=True)
    books.open_window(1)
    for step in range(1, 4):
        books.charge(COMPUTE, 60)
        books.charge_wait(WORLD, 40)
        if step == 2:
            books.settle(0, {"network": 40}, through=1)
        books.close_step(step * 100)
    assert [one.total for one in pending(books, 0)] == [40, 40, 40]
    assert [spent(step) for step in ring(words)] == [{"compute": 60, "collective": 40}] * 3


def test_own_time_is_between_collectives(words: memoryview) -> None:
    """The optimizer's step after the last collective makes a rank late in the *next* step, and belongs to that one."""
    books = Books(words)
    books.hold(0, (), whole=True)
    books.open_window(1)
    books.charge(COMPUTE, 10)
    books.charge_wait(WORLD, 1)
    books.charge(COMPUTE, 1000)
    books.close_step(1011)
    books.charge(CHECKPOINT, 7)
    books.charge_wait(WORLD, 1)
    books.close_step(1019)
    held = pending(books, 0)
    assert [one.own[0] for one in held] == [10, 1000]
    assert [one.own[LATE_FAMILIES.index("storage")] for one in held] == [0, 7]


def test_work_that_turns_out_to_be_no_evaluation_has_made_the_rank_late_in_its_own_step(words: memoryview) -> None:
    books = Books(words)
    books.hold(0, (), whole=True)
    books.open_window(1)
    for number, evaluated in enumerate((0, 500, 0)):
        books.charge(COMPUTE, 50)
        books.charge(EVAL, evaluated)
        books.charge_wait(WORLD, 1)
        books.reclassify(number, EVAL, COMPUTE, evaluated)
        books.close_step(1)
    assert [one.own[0] for one in pending(books, 0)] == [50, 550, 50]
    assert (cause(words, "compute"), cause(words, "evaluation")) == (650, 0)


@pytest.mark.parametrize(
    ("steps", "count"),
    [((0, 500, 0, 600), 2), ((3, 500, 4, 0, 600, 2), 2), ((0, 500, 20, 20), 1), ((500, 200, 90), 3)],
)
def test_much_shorter_stretches_than_the_others_are_left_out(
    steps: tuple[int, ...], count: int, words: memoryview
) -> None:
    books = Books(words)
    books.open_window(1)
    for evaluated in steps:
        books.charge(COMPUTE, 1000)
        books.charge(EVAL, evaluated)
        books.close_step(1)
    assert word(words, "evaluations") == count


@pytest.mark.parametrize(
    ("steps", "count"),
    [
        ((0, 500, 0, 600), 2),
        ((0, 500, 20, 20), 1),
        ((500, *[20] * 40), 41),  # the first one fills a buffer
        ((*[20] * 40, 500, *[20] * 40), 81),
        ((3, 500, 4, 0, 600, 2), 2),
    ],
)
def test_short_rollouts_count_if_they_have_most_of_the_time(
    steps: tuple[int, ...], count: int, words: memoryview
) -> None:
    books = Books(words)
    books.open_window(1)
    for rolled in steps:
        books.charge(COMPUTE, 1000)
        books.charge(PHASE["rollout"], rolled)
        books.close_step(1)
    assert word(words, "rollouts") == count


def test_keeps_the_steps_after_which_the_last_evaluations_were(words: memoryview) -> None:
    books = Books(words)
    books.open_window(1)
    for number in range(60):
        books.charge(COMPUTE, 1000)
        books.charge(EVAL, 500 * (number > 0 and number % 5 == 0))
        books.close_step(1)
    books.charge(EVAL, 500)
    books.end()
    at, kept = WORD_AT["evaluated_step"]
    assert sorted(words[at : at + kept]) == [25, 30, 35, 40, 45, 50, 55, 60]


class Told:
    """A meter that finds these times, (from host, from compute, queued for a CPU) for each step."""

    awake_ns = lock_ns = 0

    def __init__(self, *found: tuple[int, int, int], idle: int | None = None):
        self.found, self.idle_ns = list(found), idle

    def step(self, now_ns: int, host_ns: int, compute_ns: int, aside_ns: int) -> tuple[int, int, int]:
        return self.found.pop(0)


def test_a_rank_that_is_blocked_before_a_collective_is_late_by_its_host(words: memoryview) -> None:
    """That it was blocked is known at the end of the step, after the collective for which the others waited."""
    books, meter = Books(words), Told((0, 0, 0), (0, 60, 0), (0, 0, 0), (30, 0, 0))
    books.hold(0, (), whole=True)
    books.open_window(1)
    books.take_blocked(meter, 1)  # type: ignore[arg-type]
    for phase, before, after in ((COMPUTE, 90, 10), (COMPUTE, 50, 0), (HOST, 40, 0)):
        books.charge(phase, before)
        books.charge_wait(WORLD, 5)
        books.charge(phase, after)
        books.take_blocked(meter, 1)  # type: ignore[arg-type]
        books.close_step(1)
    late_by = [LATE_FAMILIES.index(family) for family in ("compute", "host")]
    steps = pending(books, 0)
    assert [[one.own[family] for family in late_by] for one in steps] == [[36, 54], [54, 6], [0, 40]]
    assert (cause(words, "compute"), cause(words, "host"), cause(words, "host_blocked")) == (90, 10, 90)


def test_a_rank_that_gets_no_cpu_before_a_collective_is_late_by_its_cpu(words: memoryview) -> None:
    books, meter = Books(words), Told((0, 0, 0), (0, 60, 40))
    books.hold(0, (), whole=True)
    books.open_window(1)
    books.take_blocked(meter, 1)  # type: ignore[arg-type]
    books.charge(COMPUTE, 100)
    books.charge_wait(WORLD, 5)
    books.take_blocked(meter, 1)  # type: ignore[arg-type]
    books.close_step(1)
    late_by = [LATE_FAMILIES.index(family) for family in ("compute", "host", "cpu")]
    [step] = pending(books, 0)
    assert [step.own[family] for family in late_by] == [40, 20, 40]
    assert [cause(words, of) for of in ("compute", "host_blocked", "compute_queue")] == [40, 20, 40]


def test_waits_in_groups_outside_this_one_count_as_elsewhere(words: memoryview) -> None:
    books = Books(words)
    books.hold(0, (1,), whole=True)
    books.hold(1, (), whole=True)
    books.open_window(1)
    books.charge_wait(OTHER, 8)
    books.charge_wait(WORLD, 2)
    books.charge_wait(OTHER, 1)
    books.close_step(11)
    world, other = (pending(books, slot)[0] for slot in (0, 1))
    assert (list(world.elsewhere), list(other.elsewhere)) == ([0, 8, 0, 0, 0, 0, 0, 0], [0] * 8)


def test_a_wait_cut_in_two_is_one_call(words: memoryview) -> None:
    books = Books(words)
    books.hold(0, (), whole=True)
    books.open_window(1)
    books.charge_wait(WORLD, 3)
    books.charge(GC, 5)
    books.charge_wait(WORLD | CONTINUES, 4)
    books.close_step(12)
    assert pending(books, 0)[0].calls == [7]


def test_a_continued_wait_is_not_one_of_another_group(words: memoryview) -> None:
    """The wait for the second group interrupts the one for the first."""
    books = Books(words)
    for slot in (0, 1):
        books.hold(slot, (), whole=True)
    books.open_window(1)
    books.charge_wait(WORLD, 3, 0, 4)
    books.charge_wait(OTHER, 5, 0, 9)
    books.charge_wait(WORLD | CONTINUES, 4, 0, 13)
    books.close_step(20)
    assert [pending(books, slot)[0].calls for slot in (0, 1)] == [[7], [5]]


def test_a_wait_that_continues_in_the_next_step_counts_in_both(words: memoryview) -> None:
    books = Books(words)
    books.hold(0, (), whole=True)
    books.open_window(1)
    books.charge_wait(WORLD, 3, 0, 4)
    books.close_step(4)
    books.charge_wait(WORLD | CONTINUES, 4, 0, 8)
    books.close_step(8)
    assert [step.calls for step in pending(books, 0)] == [[3], [4]]


def test_a_group_that_is_held_again_has_no_waits_from_before(words: memoryview) -> None:
    """Those became `collective` when it was released in the same step."""
    books = Books(words)
    books.hold(0, (), whole=True)
    books.open_window(1)
    books.charge_wait(WORLD, 3, 0, 4)
    books.release(0)
    books.hold(0, (), whole=False)
    books.charge_wait(WORLD | CONTINUES, 4, 0, 8)
    books.close_step(8)
    (step,) = pending(books, 0)
    assert (step.calls, step.complete) == ([4], False)
    assert (cause(words, "collective"), word(words, "pending_ns")) == (3, 4)


def test_a_message_arrives_at_the_end_of_the_last_part_of_its_wait(words: memoryview) -> None:
    """Otherwise a garbage collection at the start of a wait would make its link look faster than any clock allows."""
    books = Books(words)
    books.hold(0, (), whole=True, pairwise=True)
    books.open_window(1)
    issues = (Issue(3, sent=False, at=77),)
    books.charge_wait(wait_code(0, peer=3), 3, 0, 80, issues)
    books.charge_wait(wait_code(0, peer=3) | CONTINUES, 4, 0, 84, issues)
    books.close_step(90)
    (message,) = pending(books, 0)[0].messages
    assert message == Message(3, False, 77, 84, 7)


def test_records_transfer_cost_and_slowest_link_of_waits_for_stages(words: memoryview) -> None:
    books = Books(words)
    for link, ns in (((0, 1), 5), ((1, 2), 30), ((0, 1), 7)):
        books.latency(2, link, ns)
    assert slot_word(words, "latency_ns", 2) == 42
    assert link_of(slot_word(words, "link", 2)) == (1, 2)
    assert link_of(slot_word(words, "link", 1)) is None


def test_the_thread_that_the_training_waits_for_may_record(words: memoryview) -> None:
    """On a GPU, autograd's thread issues the first collective of some groups, so they are held back there."""
    machine = PhaseMachine(words, time.monotonic_ns())

    def in_a_thread(*, helps: bool) -> list[int]:
        first: list[int] = []
        with ThreadPoolExecutor(1) as pool:
            machine.helper = pool.submit(threading.get_ident).result() if helps else 0
            pool.submit(machine.update, lambda: first.append(machine.books.hold(1, (), whole=True))).result()
        return first

    assert in_a_thread(helps=False) == []
    assert in_a_thread(helps=True) == [1]


def test_a_step_with_an_unmeasured_interval_cannot_be_compared(words: memoryview) -> None:
    books = Books(words)
    books.hold(0, (), whole=True)
    books.open_window(1)
    books.charge_unmeasured(5)
    books.close_step(5)
    books.close_step(6)
    assert [step.complete for step in pending(books, 0)] == [False, True]


def test_waits_of_an_unknown_group_are_collective_at_once(words: memoryview) -> None:
    books = Books(words)
    books.hold(0, (), whole=True)
    books.open_window(1)
    books.charge_wait(UNKNOWN_WAIT, 9)
    assert (cause(words, "collective"), slot_word(words, "unsplit_ns", 7)) == (9, 9)


def test_held_back_waits_are_collective_if_no_split_is_possible(words: memoryview) -> None:
    books = Books(words)
    books.hold(0, (), whole=True)
    books.open_window(1)
    books.charge_wait(WORLD, 40)
    books.close_step(40)
    books.release(0)
    books.charge_wait(WORLD, 2)
    books.close_step(42)
    assert (word(words, "pending_ns"), cause(words, "collective")) == (0, 42)
    assert [spent(step) for step in ring(words)] == [{"collective": 40}, {"collective": 2}]
    assert slot_word(words, "settled") == 1


def test_the_ring_of_calls_keeps_unsettled_waits_at_the_end(words: memoryview) -> None:
    books = Books(words)
    books.hold(0, (), whole=True)
    books.open_window(1)
    for step in range(1, 4):
        books.charge_wait(WORLD, step * 1000)
        books.close_step(step * 1000)
    books.settle(0, {"network": 1000}, through=1)
    books.end()
    assert (word(words, "pending_ns"), cause(words, "collective"), slot_word(words, "settled")) == (0, 5000, 1)
    assert parse_ledger(bytes(words), "here", alive=True).calls == [
        Call(1, 0, 1000),
        Call(2, 0, 2000),
        Call(3, 0, 3000),
    ]


def test_the_ring_of_calls_keeps_the_newest_waits(words: memoryview) -> None:
    books = Books(words)
    books.hold(0, (), whole=True)
    books.open_window(1)
    waited = 0
    for step in (RING_CALLS - 1, 3, 2 * RING_CALLS + 5):
        for _ in range(step):
            waited += 1
            books.charge_wait(WORLD, waited * 1000)
        books.close_step(1)
        books.sort()
        calls = parse_ledger(bytes(words), "here", alive=True).calls
        assert [call.ns for call in calls] == [ns * 1000 for ns in range(waited + 1)][-len(calls) :]
        assert len(calls) >= min(waited, RING_CALLS - 1)


def test_the_ring_of_calls_has_each_wait_after_50_ms(words: memoryview) -> None:
    """The ring of a rank that is killed lacks the waits of at most 50 ms."""
    books, ms = Books(words), 1_000_000
    books.hold(0, (), whole=True)
    books.open_window(ms)
    known = []
    for end in (2, 3, 30, 60):
        books.charge_wait(WORLD, ms, 0, end * ms)
        books.close_step(end * ms)
        known.append(len(parse_ledger(bytes(words), "here", alive=True).calls))
    assert known == [1, 1, 1, 4]


def test_the_ring_of_calls_has_waits_of_a_step_and_time_between_them_in_order(words: memoryview) -> None:
    books = Books(words)
    for slot in (0, 1):
        books.hold(slot, (), whole=True, pairwise=slot == 1)
    books.open_window(100_000)
    books.charge_wait(wait_code(1), 3_000, 0, 110_000, (Issue(5, True, 104_000), Issue(2, False)))
    books.charge_wait(WORLD, 2_000, 0, 120_000)
    books.charge_wait(WORLD | CONTINUES, 1_000, 0, 123_000)  # a garbage collection was in between
    books.charge_wait(wait_code(1), 0, 0, 130_000, (Issue(2, False, 130_000),))
    books.close_step(140_000)
    books.charge_wait(WORLD, 1_000, 0, 145_000)
    books.close_step(150_000)
    books.sort()
    assert parse_ledger(bytes(words), "here", alive=True).calls == [
        Call(1, 1, 3_000, 7_000, 5, True, 3_000),
        Call(1, 1, 0, 0, 2, False, 0, True),
        Call(1, 0, 3_000, 8_000),
        Call(1, 1, 0, 7_000, 2, False, 0),
        Call(2, 0, 1_000, 4_000),
    ]


def test_names_the_ranks_waited_for_most(words: memoryview) -> None:
    books = Books(words)
    words[WORD_AT["slot_key"][0]] = 1
    books.blame(0, {rank: 100 + rank for rank in range(20)})
    books.blame(0, {3: 1000})
    behind = parse_ledger(bytes(words), "here", alive=True).slots[0].behind
    assert behind == {3: 1103, 19: 119, 18: 118, 17: 117, 16: 116, 15: 115}


def test_steps_that_the_earlier_attempt_had_finished_are_recompute(words: memoryview) -> None:
    words[WORD_AT["recompute_until"][0]] = 12
    words[WORD_AT["base_step"][0]] = 10
    books = Books(words)
    books.open_window(0)
    for step in range(1, 5):
        books.charge(COMPUTE, 10)
        books.close_step(step * 10)
    assert (cause(words, "recompute"), cause(words, "compute")) == (20, 20)


# -- the phase machine

_MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(0, len(PHASES) - 1)),
        st.tuples(st.just("enter_from_base"), st.sampled_from([DATA, CHECKPOINT, GC])),
        st.tuples(st.just("leave"), st.just(0)),
        st.tuples(st.just("leave_wait"), st.just(0)),
        st.tuples(st.just("base"), st.sampled_from([COMPUTE, HOST])),
        st.tuples(st.just("begin"), st.just(0)),
        st.tuples(st.just("boundary"), st.sampled_from([COMPUTE, HOST])),
        st.tuples(st.just("enter_wait"), st.sampled_from([WORLD, OTHER, UNKNOWN_WAIT])),
        st.tuples(st.just("hold"), st.integers(0, 1)),
        st.tuples(st.just("settle"), st.integers(0, 100)),
        st.tuples(st.just("release"), st.integers(0, 1)),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(moves=_MOVES)
def test_every_nanosecond_is_in_exactly_one_place(tmp_path_factory: pytest.TempPathFactory, moves: list) -> None:
    """Law 1, for any sequence of calls, even meaningless ones: the causes sum to the time since the start."""
    writer = new_writer(tmp_path_factory.mktemp("w"))
    words = writer.words
    start = time.monotonic_ns()
    machine = PhaseMachine(words, start)
    open_brackets = []
    for what, argument in moves:
        if what in ("enter", "enter_from_base", "enter_wait"):
            open_brackets.append(getattr(machine, what)(argument))
        elif what == "leave":
            parts = ((CAUSE["data_cpu"], 7), (CAUSE["data_read"], -1))
            machine.leave(open_brackets.pop() if open_brackets else NOT_ENTERED, parts)
        elif what == "leave_wait":
            old = open_brackets.pop() if open_brackets else NOT_ENTERED
            before = machine.phase
            machine.leave_wait(old)
            assert machine.phase == (before if old == NOT_ENTERED else old)
            assert word(words, "open_slot") == (slot_of(machine.phase) if machine.phase >= LEAST else -1)
        elif what in ("base", "boundary"):
            getattr(machine, what)(argument)
        elif what == "begin":
            machine.begin()
        elif what == "hold":
            if machine.books.held[argument] is None:
                machine.update(machine.books.hold, argument, (1 - argument,), whole=True)
        elif what == "settle":
            pending = slot_word(words, "pending_ns")
            parts = {"network": pending * argument // 100, "straggler": pending - pending * argument // 100}
            machine.update(machine.books.settle, 0, parts, word(words, "steps"))
        else:
            machine.update(machine.books.release, argument)
        assert total(words) == machine.since - start
        assert word(words, "sequence") % 2 == 0
    machine.close()
    assert total(words) == machine.since - start
    assert word(words, "faults") == 0
    writer.close()


def test_the_innermost_phase_wins_and_the_outer_one_resumes(words: memoryview) -> None:
    machine = PhaseMachine(words, time.monotonic_ns())
    machine.begin()
    old = machine.enter(DATA)
    inner = machine.enter_wait(WORLD)
    machine.leave(inner)
    assert machine.phase == DATA
    machine.leave(old)
    assert machine.phase == COMPUTE
    assert word(words, "collectives") == 1


def test_a_wait_nested_in_one_of_another_group_is_a_separate_call(words: memoryview) -> None:
    machine = PhaseMachine(words, time.monotonic_ns())
    machine.begin()
    outer = machine.enter_wait(WORLD)
    assert machine.enter_wait(WORLD) == machine.enter_wait(UNKNOWN_WAIT) == NOT_ENTERED
    inner = machine.enter_wait(OTHER)
    assert word(words, "open_slot") == 1
    machine.leave(inner)
    assert (word(words, "open_slot"), machine.phase) == (0, WORLD | CONTINUES)
    machine.leave(outer)
    assert word(words, "open_slot") == -1
    assert [slot_word(words, "calls", slot) for slot in (0, 1)] == [1, 1]


def test_everything_inside_a_bracket_counts_as_its_phase(words: memoryview) -> None:
    machine = PhaseMachine(words, time.monotonic_ns())
    machine.begin()
    machine.enter(DATA)
    assert machine.enter_from_base(PHASE["restore"]) == NOT_ENTERED
    assert machine.enter(DATA) == NOT_ENTERED


def test_ignores_phases_of_other_threads(words: memoryview) -> None:
    import threading

    machine = PhaseMachine(words, time.monotonic_ns())
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(machine.enter(DATA)))
    thread.start()
    thread.join()
    assert got == [NOT_ENTERED]
    assert machine.phase == STARTUP


def test_accepts_waits_of_the_backward_thread(words: memoryview) -> None:
    import threading

    machine = PhaseMachine(words, time.monotonic_ns())

    def run() -> None:
        machine.helper = threading.get_ident()
        machine.leave(machine.enter_wait(WORLD))
        machine.helper = 0

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert word(words, "collectives") == 1


def test_an_internal_error_is_counted_and_not_raised(words: memoryview) -> None:
    machine = PhaseMachine(words, time.monotonic_ns())
    machine.begin()

    machine.books._last_end = None  # type: ignore[assignment]
    machine.boundary(HOST)
    machine.leave(machine.enter(DATA))
    assert word(words, "faults") == 1
    assert word(words, "sequence") % 2 == 0


def test_the_words_of_the_ledger_cover_all_causes() -> None:
    assert STEP_WORDS[5:] == CAUSES


def test_a_step_in_which_a_rank_was_late_in_two_groups_counts_once(words: memoryview) -> None:
    books = Books(words)
    for slot in (0, 1, 0):
        books.late(slot, [1] * len(LATE_FAMILIES), (), 8)
    assert word(words, "late_steps") == 16
