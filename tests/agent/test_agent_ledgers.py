"""From ledgers to ranks: restarts, duplicates, retention, and which ranks are missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support_ledgers import SECOND, Spec, children, ended, until

from whyidle.agent.group_sums import MOST_GROUPS, OTHER_GROUPS
from whyidle.agent.ledgers import LedgerStore, Rank
from whyidle.ledger.reader import LEDGER_REASONS
from whyidle.verdict.hang import missing_ranks

STEP = {"compute": 0.1}
KEPT = 1e9


def ranks(store: LedgerStore) -> dict[tuple[str, int], Rank]:
    return {(rank.newest.run, rank.newest.rank): rank for rank in store.look().ranks}


def steps(store: LedgerStore, run: str = "r1", rank: int = 0) -> int:
    return ranks(store)[run, rank].totals["steps"][0]


def test_counters_of_a_restarted_rank_continue_from_earlier_attempts(tmp_path: Path) -> None:
    ended(tmp_path, Spec(steps=30, step=STEP, attempt=0), Spec(steps=20, step=STEP, attempt=1))
    with children(tmp_path, Spec(steps=7, step=STEP, attempt=2)):
        [rank] = LedgerStore(str(tmp_path), KEPT).look().ranks
        assert rank.newest.attempt == 2
        assert rank.newest.alive
        assert rank.totals["steps"] == (57,)
        assert sum(rank.totals["step_buckets"]) == 57


def test_a_counter_does_not_fall_when_the_ledger_of_an_old_attempt_is_removed(tmp_path: Path) -> None:
    [old] = ended(tmp_path, Spec(steps=30, step=STEP))
    store = LedgerStore(str(tmp_path), KEPT)
    with children(tmp_path, Spec(steps=7, step=STEP, attempt=1)):
        assert steps(store) == 37
        os.unlink(old)
        assert steps(store) == 37
        assert steps(store) == 37
    until(lambda: not ranks(store)["r1", 0].newest.alive)
    assert steps(store) == 37


def test_groups_are_summed_by_label_over_slots_and_attempts(tmp_path: Path) -> None:
    first = [
        ("dp", {"network": 1.0, "straggler": 2.0}, 10),
        ("tp", {"unsplit": 4.0}, 20),
        ("dp", {"pipeline": 8.0}, 40),
    ]
    second = [("tp", {"network": 16.0}, 80)]
    [old] = ended(tmp_path, Spec(groups=first))
    store = LedgerStore(str(tmp_path), KEPT)
    with children(tmp_path, Spec(groups=second, attempt=1)):
        expected = {
            "dp": (1 * SECOND, 2 * SECOND, 8 * SECOND, 0, 50),
            "tp": (16 * SECOND, 0, 0, 4 * SECOND, 100),
        }
        [rank] = store.look().ranks
        assert rank.groups == expected
        os.unlink(old)
        assert [rank.groups for rank in store.look().ranks] == [expected]


def test_the_number_of_groups_of_a_rank_is_bounded(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), KEPT)
    attempts = [
        Spec(attempt=attempt, groups=[(f"g{attempt}-{slot}", {"network": 1.0}, 1) for slot in range(8)])
        for attempt in range(10)
    ]
    ended(tmp_path, *attempts)
    [rank] = store.look().ranks
    assert len(rank.groups) == MOST_GROUPS + 1
    assert rank.groups[OTHER_GROUPS][-1] == 80 - MOST_GROUPS


def test_a_dead_ledger_never_supersedes_a_live_one(tmp_path: Path) -> None:
    ended(tmp_path, Spec(attempt=3))
    with children(tmp_path, Spec(attempt=0)):
        [rank] = LedgerStore(str(tmp_path), KEPT).look().ranks
        assert (rank.newest.attempt, rank.newest.alive) == (0, True)


def test_the_older_of_two_live_ledgers_of_a_rank_counts(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), KEPT)
    with children(tmp_path, Spec(created=200, steps=9, step=STEP), Spec(created=100, steps=5, step=STEP)):
        for _ in range(3):
            snapshot = store.look()
            [rank] = snapshot.ranks
            assert rank.totals["steps"] == (5,)
            assert snapshot.errors["duplicate"] == 1


@pytest.mark.ages
def test_an_ended_rank_is_removed_after_the_retention(tmp_path: Path) -> None:
    ended(tmp_path, Spec(run="gone", idle=200.0), Spec(run="kept", idle=20.0))
    with children(tmp_path, Spec(run="live", idle=200.0)):
        assert sorted(ranks(LedgerStore(str(tmp_path), 100.0))) == [("kept", 0), ("live", 0)]


def test_a_rank_whose_newest_ledger_cannot_be_read_is_absent_until_it_can(tmp_path: Path) -> None:
    old, new = ended(tmp_path, Spec(steps=30, step=STEP), Spec(steps=7, step=STEP, attempt=1))
    store = LedgerStore(str(tmp_path), KEPT)
    assert steps(store) == 37
    sound = Path(new).read_bytes()
    Path(new).write_bytes(b"?" * len(sound))
    snapshot = store.look()
    assert not snapshot.ranks  # neither its last values nor those of the attempt before
    assert snapshot.errors["foreign"] == 1
    Path(new).write_bytes(sound)
    assert steps(store) == 37
    assert os.path.exists(old)


def test_a_bad_ledger_is_counted_once_until_it_changes(tmp_path: Path) -> None:
    bad = tmp_path / "0-1-bad.ledger"
    bad.write_bytes(b"x" * 100)
    store = LedgerStore(str(tmp_path), KEPT)
    assert set(store.look().errors) == set(LEDGER_REASONS)
    assert store.look().errors["foreign"] == 1
    bad.write_bytes(b"")
    assert [store.look().errors[reason] for reason in ("foreign", "short")] == [1, 1]


def test_ready_only_after_a_look_at_a_directory_that_can_be_read(tmp_path: Path) -> None:
    directory = tmp_path / "ledgers"
    directory.write_text("a file")
    store = LedgerStore(str(directory), KEPT)
    store.look()
    assert not store.ready
    directory.unlink()
    store.look()
    assert store.ready  # no rank has made it yet, which is the same as empty


WAITING = Spec(rank=0, phase="collective", idle=8.0, collectives=12)


@pytest.mark.ages
@pytest.mark.parametrize(
    ("other", "missing"),
    [
        (Spec(rank=1, phase="compute", collectives=11), True),
        (Spec(rank=1, phase="host", collectives=12), True),
        (Spec(rank=1, phase="collective", collectives=12), False),
        (Spec(rank=1, phase="compute", collectives=13), False),  # was in the collective and has continued
        (Spec(rank=1, phase="compute", collectives=0, run="r2"), False),
        (Spec(rank=5, phase="compute", collectives=0), False),  # not in the world
        (Spec(rank=1, phase="compute", collectives=0, attempt=1), False),  # the attempt of the waiting rank is over
    ],
)
def test_names_missing_ranks(tmp_path: Path, other: Spec, missing: bool) -> None:
    with children(tmp_path, WAITING, other):
        snapshot = LedgerStore(str(tmp_path), KEPT).look()
        found = missing_ranks([rank.newest for rank in snapshot.ranks], snapshot.now_ns, longer_than=5.0)
        assert [one.ledger.rank for one in found] == ([1] if missing else [])
        for one in found:
            assert one.seconds >= 8.0
            assert [ledger.rank for ledger in one.waiting] == [0]
        assert not missing_ranks([rank.newest for rank in snapshot.ranks], snapshot.now_ns, longer_than=1e6)


@pytest.mark.ages
def test_a_dead_rank_is_missing(tmp_path: Path) -> None:
    ended(tmp_path, Spec(rank=1, phase="collective", collectives=11))
    with children(tmp_path, WAITING):
        snapshot = LedgerStore(str(tmp_path), KEPT).look()
        found = missing_ranks([rank.newest for rank in snapshot.ranks], snapshot.now_ns, longer_than=5.0)
        assert [one.ledger.rank for one in found] == [1]
