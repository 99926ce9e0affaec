"""Snapshots of a ledger's sums: they stay few, evenly spaced, and survive a torn file."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from whyidle.ledger.causes import CAUSE
from whyidle.ledger.layout import SNAPSHOTS_AT, WORD_AT
from whyidle.ledger.reader import Ledger, parse_ledger, read_ledger
from whyidle.ledger.snapshots import ENTRY, MOST, SPACING_NS, Snapshot
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks.snapshots import Snapshots

_COMPUTE = WORD_AT["cause_ns"][0] + CAUSE["compute"]


class Rank:
    """A rank that ends a step each tenth of a second, long ago."""

    def __init__(self, directory: Path):
        self.writer = LedgerWriter(str(directory), {"run": "r", "node": "n"}, {"rank": 0, "world_size": 1})
        self.snapshots = Snapshots(self.writer.words)
        self.writer.set_string("boot", "an earlier one")  # so "long ago" may be longer than this machine is up
        self.now = time.monotonic_ns()
        self.writer.set("start_ns", self.now)
        self.writer.set("window_ns", self.now)

    def steps(self, count: int) -> None:
        words = self.writer.words
        for _ in range(count):
            self.now += SPACING_NS // 10
            words[WORD_AT["steps"][0]] += 1
            words[_COMPUTE] += SPACING_NS // 10
            if self.now >= self.snapshots.due_ns:
                self.snapshots.take(self.now)
        self.writer.set("phase_since_ns", self.now)

    def ledger(self) -> Ledger:
        return parse_ledger(self.writer.copy(), "memory", alive=False)


def since_first(ledger: Ledger) -> list[Snapshot]:
    """Its snapshots. The wall clock places those of another boot, and each reader has its own."""
    first = ledger.snapshots[0].end_ns
    return [one._replace(end_ns=one.end_ns - first) for one in ledger.snapshots]


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


@pytest.mark.parametrize("seconds", [5, 63, 64, 65, 200, 900])
def test_they_stay_few_and_evenly_spaced_from_the_first_step_on(rank: Rank, seconds: int) -> None:
    rank.steps(10 * seconds)
    found = rank.ledger().snapshots
    assert MOST / 2 <= len(found) <= MOST or seconds < MOST / 2
    distances = {after.end_ns - before.end_ns for before, after in pairwise(found)}
    assert len(distances) == 1
    assert found[0].steps == 1
    assert found[-1].steps > 10 * seconds - 2 * distances.pop() / (SPACING_NS / 10)
    for each in found:
        assert each.causes[CAUSE["compute"]] == each.steps * SPACING_NS // 10


def test_they_reach_the_file(rank: Rank) -> None:
    rank.steps(300)
    rank.writer.file.flush()
    rank.steps(500)
    rank.writer.file.flush()
    assert since_first(read_ledger(rank.writer.path, steps=True)) == since_first(rank.ledger())


def test_an_entry_that_was_read_while_it_was_written_is_left_out(rank: Rank) -> None:
    rank.steps(300)
    whole = since_first(rank.ledger())
    rank.writer.words[SNAPSHOTS_AT + 3 * (ENTRY.size // 8)] += 1
    assert since_first(rank.ledger()) == [*whole[:3], *whole[4:]]


def test_nonsense_is_left_out(rank: Rank) -> None:
    rank.steps(100)
    words, width = rank.writer.words, ENTRY.size // 8
    for index in range(MOST):
        words[SNAPSHOTS_AT + index * width] = words[SNAPSHOTS_AT + index * width + width - 1] = 1 << 62
    assert rank.ledger().snapshots == []
