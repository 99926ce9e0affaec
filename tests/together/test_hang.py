"""A hang is visible while it lasts: in the ledgers, and in what the agent serves over HTTP."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support_forks import Forked, Forks
from support_ledgers import Spec, children
from support_training import (
    agent,
    assert_every_second_is_in_one_place,
    ledgers_of,
    metrics,
    until,
)

from whyidle.ledger.causes import PHASE
from whyidle.ledger.directory import read_directory
from whyidle.verdict.hang import missing_ranks


def test_names_a_rank_that_sleeps_before_a_collective(tmp_path: Path, forks: Forks) -> None:
    def waits(seconds: float) -> bool:
        rank = ledgers_of(tmp_path).get(0)
        return rank is not None and rank.phase_name == "collective" and rank.idle_seconds > seconds

    def look(ranks: list[Forked]) -> None:
        assert len(ranks) == 2
        with agent(tmp_path / "ledgers") as (_, url):
            look_at(url)

    def look_at(url: str) -> None:
        assert until(lambda: (tmp_path / "sleeps").exists(), 90)
        assert until(lambda: waits(1.0)), "the wait grows"
        waiting, late = ledgers_of(tmp_path)[0], ledgers_of(tmp_path)[1]
        assert waiting.alive
        assert late.alive
        assert late.phase_name != "collective"
        assert late.collectives < waiting.collectives
        assert until(lambda: waits(2.0)), "and goes on growing"

        ((labels, seconds),) = [(at, s) for at, s in metrics(url, "whyidle_phase_open_seconds") if at["rank"] == "0"]
        assert labels["phase"] == "collective"
        assert seconds > 2.0
        assert until(
            lambda: any(at["rank"] == "1" for at, s in metrics(url, "whyidle_collective_missing_seconds") if s)
        )
        assert not [at for at, s in metrics(url, "whyidle_collective_missing_seconds") if s and at["rank"] == "0"]

        (tmp_path / "go").touch()

    outcome, codes = forks.run(("late.py",), tmp_path, 2, meanwhile=look)
    assert codes == [0, 0], outcome.stderr
    for rank in (0, 1):
        told, ledger = outcome.rank(rank)
        assert_every_second_is_in_one_place(told, ledger)
        assert ledger.steps == told.counts["steps"]
    # Rank 0 waited: for this long, and only in that step.
    _, ledger = outcome.rank(0)
    waits_ns = ledger.cause_ns["collective"] + ledger.cause_ns["straggler"] + ledger.cause_ns["network"]
    assert waits_ns > 2_000_000_000


# -- the missing rank, by group

# Two data-parallel groups and the world: ranks 0 and 2, and ranks 1 and 3. The keys stand for the sets of ranks.
WORLD, EVEN, ODD = 11, 22, 33
LIMIT_SECONDS = 10.0


def rank_of_two_groups(rank: int, calls: int, *, waits: bool, idle: float = 12.0, **more: int) -> Spec:
    """A rank that has entered the world's collectives 5 times and those of its own group ``calls`` times."""
    groups = [
        {"key": WORLD, "size": 4, "calls": 5},
        {"key": (EVEN, ODD)[rank % 2], "size": 2, "calls": calls, **more},
    ]
    return Spec(
        rank=rank,
        world_size=4,
        steps=5,
        step={"compute": 0.1},
        phase="collective" if waits else "compute",
        idle=idle,
        collectives=5 + calls,
        slots=groups,
        words={"open_slot": 1 if waits else -1},
    )


def missing(directory: Path, *specs: Spec) -> dict[int, tuple[int, ...]]:
    """Missing rank -> the ranks that wait for it."""
    with children(directory, *specs):
        ledgers, errors = read_directory(str(directory))
        assert not errors
        assert len(ledgers) == len(specs)
        found = missing_ranks(ledgers, time.monotonic_ns(), longer_than=LIMIT_SECONDS)
    return {one.ledger.rank: tuple(waiter.rank for waiter in one.waiting) for one in found}


def test_names_the_missing_rank_of_the_group_and_no_rank_of_another_group(tmp_path: Path) -> None:
    """Ranks 0 and 1 wait, each in its own group, for 2 and 3. Rank 2 has entered more collectives than rank 1 waits in,
    and rank 3 fewer than any. Without groups, rank 3 would be missing for rank 0, and rank 2 for no rank."""
    late_of_even = rank_of_two_groups(2, 19, waits=False)
    late_of_odd = rank_of_two_groups(3, 6, waits=False)
    found = missing(
        tmp_path,
        rank_of_two_groups(0, 20, waits=True),
        rank_of_two_groups(1, 7, waits=True),
        late_of_even,
        late_of_odd,
    )
    assert found == {2: (0,), 3: (1,)}


# How rank 0 waits, the calls and the group of rank 2, and which ranks are missing, with those that wait for them.
WAITS: dict[str, tuple[dict[str, Any], int, dict[str, int], dict[int, tuple[int, ...]]]] = {
    "in one of two groups": ({}, 19, {}, {2: (0,)}),
    "for a rank that has left the collective already": ({}, 20, {}, {}),
    # A stage waits for messages whenever another one is busy, however long that takes.
    "for a message": ({"pairwise": 1}, 19, {"pairwise": 1}, {}),
    "for a short time": ({"idle": 0.0}, 19, {}, {}),
}


@pytest.mark.parametrize(("wait", "calls", "group", "expected"), WAITS.values(), ids=WAITS)
def test_names_a_rank_only_if_its_group_waits_for_it_in_a_collective(
    wait: dict[str, Any], calls: int, group: dict[str, int], expected: dict[int, tuple[int, ...]], tmp_path: Path
) -> None:
    found = missing(
        tmp_path,
        rank_of_two_groups(0, 20, waits=True, **wait),
        rank_of_two_groups(1, 7, waits=False),
        rank_of_two_groups(2, calls, waits=False, **group),
        rank_of_two_groups(3, 7, waits=False),
    )
    assert found == expected


def test_names_every_missing_rank_of_the_world(tmp_path: Path) -> None:
    waiter, entered = rank_of_two_groups(0, 20, waits=True), rank_of_two_groups(1, 7, waits=False)
    waiter.words["open_slot"] = 0
    waiter.slots[0]["calls"] = 6
    entered.slots[0]["calls"] = 6
    found = missing(
        tmp_path,
        waiter,
        entered,
        rank_of_two_groups(2, 20, waits=False),
        rank_of_two_groups(3, 7, waits=False),
    )
    assert found == {2: (0,), 3: (0,)}


# -- devices that have stopped while their hosts continued


def on_device(rank: int, *, device: str, slot: int, ahead: int) -> Spec:
    """A rank whose host has entered 9 waits and continues. Its device is in ``device``, ``ahead`` behind."""
    words = {"device_phase": PHASE[device] + 1 if device else 0, "device_slot": slot + 1}
    spec = rank_of_two_groups(rank, 0, waits=False, idle=6.0)
    spec.collectives, spec.words = 9, {**spec.words, **words}
    spec.slots = [{"key": WORLD, "size": 4, "calls": 9, "ahead": ahead}]
    return spec


def test_names_a_rank_whose_device_has_not_reached_the_collective(tmp_path: Path) -> None:
    """Its host is far past it, like the hosts of all other ranks."""
    waiting = [on_device(rank, device="collective", slot=0, ahead=3) for rank in (0, 1, 3)]
    for spec in waiting:
        spec.words["device_since_ns"] = time.monotonic_ns() - 12 * 1_000_000_000
    late = on_device(2, device="compute", slot=-1, ahead=4)
    late.words["device_since_ns"] = time.monotonic_ns() - 30 * 1_000_000_000
    assert missing(tmp_path, *waiting, late) == {2: (0, 1, 3)}


def test_names_no_rank_if_all_devices_wait_in_one_collective(tmp_path: Path) -> None:
    ranks = [on_device(rank, device="collective", slot=0, ahead=3) for rank in range(4)]
    for spec in ranks:
        spec.words["device_since_ns"] = time.monotonic_ns() - 12 * 1_000_000_000
    assert missing(tmp_path, *ranks) == {}
