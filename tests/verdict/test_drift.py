"""What a report says of a run that has changed since its first steps, and of one that has not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support_ledgers import Spec, ended

from whyidle.ledger.causes import CAUSE, CAUSES
from whyidle.ledger.reader import Ledger, read_ledger
from whyidle.ledger.snapshots import Snapshot
from whyidle.verdict.drift import Drift, drifts

COUNT, STEPS = 48, 50
MIB = 1 << 20


@pytest.fixture
def rank(tmp_path: Path) -> Callable[[int], Ledger]:
    def make(number: int) -> Ledger:
        [path] = ended(tmp_path / str(number), Spec(rank=number, steps=10))
        return read_ledger(path, steps=True)

    return make


def changed(
    ledger: Ledger,
    seconds: Callable[[int], dict[str, float]],
    memory: Callable[[int], int] = lambda index: 900 * MIB,
    noise: float = 0.0,
    seed: int = 1,
) -> Ledger:
    """Gives a ledger snapshots of COUNT intervals. ``seconds``: of each step by cause, in the interval ``index``."""
    chance = random.Random(seed)
    causes, end_ns = [0] * len(CAUSES), ledger.created_ns
    found = [Snapshot(end_ns, 1, 0, memory(0), 0, tuple(causes))]
    for index in range(COUNT):
        for cause, each in seconds(index).items():
            ns = round(1e9 * STEPS * each * (1 + noise * chance.gauss(0, 1)))
            causes[CAUSE[cause]] += ns
            end_ns += ns
        found.append(Snapshot(end_ns, 1 + STEPS * (index + 1), 0, memory(index + 1), 0, tuple(causes)))
    ledger.snapshots = found
    return ledger


Rank = Callable[[int], Ledger]


def only(ledgers: list[Ledger]) -> Drift:
    [found] = drifts(ledgers)
    return found


def test_a_loop_that_adds_up_its_history_becomes_slower_steadily(rank: Rank) -> None:
    found = only([changed(rank(0), lambda i: {"compute": 0.010, "host": 0.001 + 0.006 * i / COUNT}, noise=0.02)])
    assert (found.kind, found.cause, found.step) == ("slower", "host", 0)
    assert found.grown == pytest.approx(0.0055, abs=0.001)
    assert "steadily since the start" in found.sentence
    assert "in the loop's own Python (host)" in found.sentence


@pytest.mark.parametrize(
    "late", [{30, 55, 60}, {*range(3, 12), *range(40, 48), *range(54, 64)}], ids=["freezes", "waves"]
)
def test_a_change_that_is_neither_steady_nor_sudden_has_no_start(late: set[int], rank: Rank) -> None:
    found = drifts([changed(rank(0), lambda i: {"compute": 0.010 + 0.020 * (i in late)}, noise=0.02)])
    assert all("since" not in one.sentence for one in found)


def test_a_mount_that_becomes_slow_is_dated(rank: Rank) -> None:
    ledger = changed(rank(0), lambda i: {"compute": 0.010, "data_read": 0.001 if i < 30 else 0.009}, noise=0.02)
    found = only([ledger])
    assert (found.kind, found.cause, found.step) == ("slower", "data_read", 1 + 30 * STEPS)
    begun = ledger.created_unix_ns / 1e9
    assert found.unix - begun == pytest.approx(30 * STEPS * 0.011, rel=0.02)


def test_a_change_is_dated_right_if_the_rank_had_another_clock(tmp_path: Path) -> None:
    [path] = ended(tmp_path, Spec(rank=0, steps=10, ahead=5_000.0))  # its own time namespace, for example
    ledger = read_ledger(path, steps=True)
    assert abs(ledger.created_ns - time.monotonic_ns()) < 600e9
    found = only([changed(ledger, lambda i: {"compute": 0.010, "data_read": 0.001 if i < 30 else 0.009})])
    assert found.unix - ledger.created_unix_ns / 1e9 == pytest.approx(30 * STEPS * 0.011, rel=0.02)


def test_the_rank_that_became_slower_itself_is_named_and_not_those_that_wait(rank: Rank) -> None:
    late = changed(rank(1), lambda i: {"compute": 0.010 + 0.004 * (i >= 20)}, noise=0.01)
    waits = changed(rank(0), lambda i: {"compute": 0.010, "collective": 0.001 + 0.004 * (i >= 20)}, noise=0.01)
    found = only([waits, late])
    assert (found.rank, found.cause, found.step) == (1, "compute", 1 + 20 * STEPS)


def test_a_cold_start_is_told_apart(rank: Rank) -> None:
    found = only([changed(rank(0), lambda i: {"compute": 0.010, "data_read": 0.020 if i < 8 else 0.001}, noise=0.02)])
    assert (found.kind, found.cause, found.step) == ("cold", "data_read", 1 + 8 * STEPS)
    assert found.sentence.startswith("the first 401 steps took 30 ms each, later ones 11 ms")


def test_memory_that_only_grows(rank: Rank) -> None:
    found = only([changed(rank(0), lambda i: {"compute": 0.010}, lambda i: (900 + 20 * i) * MIB)])
    assert (found.kind, found.cause) == ("memory", "")
    assert "memory only grows: 1.3 GiB to 1.8 GiB" in found.sentence


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_said_of_steady_runs(rank: Rank, seed: int) -> None:
    """Steps vary by a tenth, and each eighth interval has a save. Memory goes up and down."""
    ledger = changed(
        rank(0),
        lambda i: {"compute": 0.010, "checkpoint_write": 0.003 * (i % 8 == 0)},
        lambda i: (900 + 200 * (i % 3)) * MIB,
        noise=0.1,
        seed=seed,
    )
    assert drifts([ledger]) == []


def test_nothing_is_said_of_short_runs(rank: Rank) -> None:
    ledger = changed(rank(0), lambda i: {"compute": 0.010 + i})
    ledger.snapshots = ledger.snapshots[:12]
    assert drifts([ledger]) == []
