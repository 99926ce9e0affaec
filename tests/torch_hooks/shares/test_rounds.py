"""What ranks tell each other about shares: all use the same counts in the same call, however late words come."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.ledger.waits import NOTHING
from whyidle.torch_hooks.shares.meter import ENOUGH, SETTLING, Meter
from whyidle.torch_hooks.shares.plan import Pace, counts_of
from whyidle.torch_hooks.shares.rounds import (
    DISAGREE,
    DOUBTS,
    GROUPS,
    LATE,
    LEAST_MARGIN,
    LEAST_WINDOW,
    MISSING,
    TOTALS,
    Rounds,
    words_of,
)

MS = 1_000_000
SLOW = 3
RANKS = 4


class Ranks:
    """Ranks whose calls are at most one apart, as in a training with a collective in each step."""

    def __init__(self, chance: random.Random, delay: Callable[[], int], total: Callable[[int, int], int]):
        self.rounds = [Rounds(rank, RANKS) for rank in range(RANKS)]
        self.counts: list[list[tuple[int, ...]]] = [[] for _ in range(RANKS)]
        self.doubt = [0] * RANKS
        self.missing: set[int] = set()
        self.paces = [10 * MS] * RANKS
        self._chance, self._delay, self._total = chance, delay, total
        self._said: list[dict[int, list[int]]] = []
        self._waits = [0] * RANKS  # the number of the round whose result each rank waits for
        self._arrives: list[int | None] = [None] * RANKS

    def run(self, calls: int, first: int = 1) -> None:
        for call in range(first, calls + 1):
            for rank in self._chance.sample(range(RANKS), RANKS):
                self._call(rank, call)

    def _call(self, rank: int, call: int) -> None:
        rounds, number = self.rounds[rank], self._waits[rank]
        if number < len(self._said) and rank in self._said[number]:
            said = self._said[number]
            if len(said) == RANKS:
                due = self._arrives[rank] = call + self._delay() if self._arrives[rank] is None else self._arrives[rank]
                if due is not None and call >= due:
                    rounds.hear([min(words) for words in zip(*said.values(), strict=True)], call)
                    self._waits[rank], self._arrives[rank] = number + 1, None
        elif call > rounds.due:
            pace = None if rank in self.missing else Pace(self.paces[rank], MS // 100)
            words = rounds.words(call, 80 * MS, self.doubt[rank], pace)
            assert len(words) == words_of(RANKS)
            if number == len(self._said):
                self._said.append({})
            self._said[number][rank] = words
        rounds.begin_call(call, self._total(rank, call))
        self.counts[rank].append(counts_of(32, RANKS, rounds.plan.paces))


def ranks(seed: int = 0, delay: int = 0, total: Callable[[int, int], int] = lambda rank, call: 32) -> Ranks:
    chance = random.Random(seed)
    return Ranks(chance, lambda: chance.randint(0, delay), total)


@given(seed=st.integers(0, 10**6), delay=st.integers(0, 8))
def test_all_ranks_change_in_the_same_call(seed: int, delay: int) -> None:
    these = ranks(seed, delay)
    these.paces[SLOW] = 15 * MS
    these.run(150)
    assert all(counts == these.counts[0] for counts in these.counts)
    assert these.counts[0][0] == (8, 8, 8, 8)
    assert these.counts[0][-1][SLOW] < 8
    assert {rounds.changes for rounds in these.rounds} == {1}
    assert {rounds.doubt for rounds in these.rounds} == {0}


def test_changes_follow_a_rank_that_recovers() -> None:
    these = ranks()
    these.paces[SLOW] = 15 * MS
    these.run(150)
    these.paces[SLOW] = 10 * MS
    for counts in these.counts:
        counts.clear()
    these.run(400, 151)
    assert these.counts[0][0][SLOW] < 8
    assert all(counts == these.counts[0] for counts in these.counts)
    assert these.counts[0][-1] == (8, 8, 8, 8)


def test_a_total_may_change() -> None:
    these = ranks(delay=3, total=lambda rank, call: 32 + call % 3)
    these.paces[SLOW] = 15 * MS
    these.run(150)
    assert these.rounds[0].doubt == 0
    assert these.counts[0][-1][SLOW] < 8


@pytest.mark.parametrize("doubt", [TOTALS, MISSING, GROUPS])
def test_shares_are_equal_while_there_is_a_doubt(doubt: int) -> None:
    these = ranks(total=lambda rank, call: 32 + (doubt == TOTALS and rank == 1))
    these.paces[SLOW] = 15 * MS
    these.missing |= {2} if doubt == MISSING else set()
    these.doubt[2] = GROUPS if doubt == GROUPS else 0
    these.run(200)
    assert {rounds.doubt for rounds in these.rounds} == {doubt}
    assert all(DOUBTS[rounds.doubt] for rounds in these.rounds)
    assert {one for counts in these.counts for one in counts} == {(8, 8, 8, 8)}


def test_shares_return_to_equal_when_a_rank_is_not_measured_any_more() -> None:
    these = ranks()
    these.paces[SLOW] = 15 * MS
    these.run(150)
    assert these.counts[0][-1][SLOW] < 8
    these.missing.add(1)
    these.run(250, 151)
    assert all(counts == these.counts[0] for counts in these.counts)
    assert these.counts[0][-1] == (8, 8, 8, 8)


@pytest.mark.parametrize("wrong", ["late", "different"])
def test_shares_become_equal_for_good_if_ranks_did_not_agree(wrong: str) -> None:
    these = ranks()
    these.paces[SLOW] = 15 * MS
    these.run(60)
    if wrong == "late":
        these.rounds[1]._late = True
    else:
        these.rounds[1]._round += 1
    these.run(400, 61)
    assert {rounds.doubt for rounds in these.rounds} == {LATE if wrong == "late" else DISAGREE}
    assert {counts[-1] for counts in these.counts} == {(8, 8, 8, 8)}


def test_a_result_after_its_call_is_noticed() -> None:
    rounds = Rounds(0, 1)
    for call in range(1, LEAST_WINDOW + 2):
        rounds.begin_call(call, 8)
    words = rounds.words(LEAST_WINDOW + 1, 10**9, 0, Pace(MS, 1))
    rounds.hear(words, 2 * LEAST_WINDOW + LEAST_MARGIN)
    assert -rounds.words(1, 1, 0, None)[4] == LATE


def test_a_rank_that_was_not_measured_says_nothing() -> None:
    assert Rounds(0, 2).words(20, 1, 0, None)[-4:] == [NOTHING] * 4


# -- the meter


def test_measures_the_own_time_of_a_unit() -> None:
    from whyidle.ledger.causes import CAUSE
    from whyidle.ledger.layout import WORD_AT

    meter, at = Meter(), WORD_AT["cause_ns"][0]
    words = [0] * (at + 64)
    for step in range(SETTLING + ENOUGH + 1):
        assert meter.pace() is None
        meter.step_begins(words, 4)
        words[at + CAUSE["compute"]] += 300
        words[at + CAUSE["data_read"]] += 100
        words[at + CAUSE["straggler"]] += 7000  # a wait for another rank
        words[at + CAUSE["checkpoint_write"]] += 9000 * (step % 3 == 0)
    meter.step_begins(words, 4)
    assert meter.pace() == Pace(100, 0)
    meter.restart()
    assert meter.pace() is None


def test_steps_without_units_are_not_measured() -> None:
    meter = Meter()
    for _ in range(50):
        meter.step_begins([0] * 4096, 0)
    assert meter.pace() is None
