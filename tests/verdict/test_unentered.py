"""Collectives that a rank had never entered when the run ended."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support_ledgers import Spec, children
from support_positions import NOW, SECOND, position

from whyidle.ledger.causes import LATE_FAMILIES
from whyidle.ledger.directory import read_directory, run_of
from whyidle.ledger.layout import CLEAN, FAILED
from whyidle.verdict import unentered
from whyidle.verdict.accounts import account
from whyidle.verdict.hang import open_blocked, open_computed
from whyidle.verdict.headline import is_unexplained
from whyidle.verdict.report import build_report
from whyidle.verdict.unentered import Unentered, Wait, lateness, never_entered, sentence

WORLD = 11


def member(rank: int, calls: int, *, phase: str = "collective", idle: float = 200.0, sign: float = 0.0) -> Spec:
    """A rank of two that was killed ``sign`` seconds ago, and entered its last phase ``idle`` seconds ago."""
    return Spec(
        rank=rank,
        steps=5,
        step={"compute": 0.1},
        phase=phase,
        idle=idle,
        collectives=calls,
        slots=[{"key": WORLD, "size": 2, "calls": calls}],
        words={
            "open_slot": 0 if phase == "collective" else -1,
            "heartbeat_ns": time.monotonic_ns() - int(sign * 1e9),
        },
    )


def killed(directory: Path, *specs: Spec) -> list[Unentered]:
    with children(directory, *specs) as ranks:
        for rank in ranks:
            rank.kill()
    ledgers, problems = read_directory(str(directory), steps=True)
    assert not problems
    return never_entered(ledgers, longer_than=5.0)


def test_a_rank_that_was_in_its_own_code_is_named(tmp_path: Path) -> None:
    [found] = killed(tmp_path, member(0, 6), member(1, 5, phase="host", idle=210.0))
    assert 100.0 < found.seconds <= 200.0
    assert sentence(found).endswith("a collective that rank 1 never entered: rank 1 was in host after 5 steps")
    own, slot, dead = lateness(found.missing[0], found.waits[0])
    assert ([*own], slot) == (["host"], -1)
    assert own["host"] + dead == pytest.approx(found.seconds)


def test_the_worker_that_owed_the_batch_of_a_missing_rank_is_named(tmp_path: Path) -> None:
    late = member(1, 5, phase="data", idle=210.0)
    late.words["open_worker_pid"] = 4711
    [found] = killed(tmp_path, member(0, 6), late)
    assert sentence(found).endswith(": rank 1 was in data after 5 steps, waiting for a batch from worker 4711")


def test_a_rank_without_a_sign_of_life_is_named(tmp_path: Path) -> None:
    [found] = killed(tmp_path, member(0, 6), member(1, 5, phase="host", idle=210.0, sign=195.0))
    assert sentence(found).endswith(
        "a collective that rank 1 never entered: rank 1 had been killed or stopped after at least 5 steps"
    )


def test_a_rank_that_failed_but_did_not_exit_is_not_late_in_its_own_code(tmp_path: Path) -> None:
    failed = member(1, 5, phase="shutdown", idle=210.0)
    failed.strings["failure"] = "ValueError - train.py:31 main"
    [found] = killed(tmp_path, member(0, 6), failed)
    assert sentence(found).endswith("never entered: rank 1 had failed after 5 steps: ValueError at train.py:31 main")
    own, _, dead = lateness(found.missing[0], found.waits[0])
    assert (sum(own.values()), dead) == (0, pytest.approx(found.seconds))


def test_a_rank_that_has_left_is_named_however_short_the_wait_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its peers notice at once that its connection is closed."""
    monkeypatch.setattr(unentered, "_last_waits", lambda ledger, *_: Wait(ledger, 0.9, 0.0, ledger.last_sign_ns))
    with children(tmp_path, member(0, 6, phase="host", idle=1.0), member(1, 5, phase="host", idle=1.0)) as ranks:
        for one in ranks:
            one.kill()
    ledgers, _ = read_directory(str(tmp_path), steps=True)
    ends = {0: FAILED, 1: CLEAN}
    left = [replace(ledger, words=ledger.words | {"ended": (ends[ledger.rank],)}) for ledger in ledgers]
    [found] = never_entered(left, longer_than=5.0)
    assert sentence(found).endswith("a collective that rank 1 never entered: rank 1 had ended after 5 steps")
    both = [replace(ledger, words=ledger.words | {"ended": (FAILED,)}) for ledger in ledgers]
    assert [ledger.rank for ledger in never_entered(both, longer_than=5.0)[0].missing] == [1]
    assert never_entered([both[0], ledgers[1]], longer_than=5.0) == []  # it may have been killed later


@pytest.mark.parametrize(("phase", "own"), [("host", "host"), ("compute", "host")])
def test_an_open_phase_in_which_looks_found_the_rank_blocked_is_not_compute(
    phase: str, own: str, tmp_path: Path
) -> None:
    late = member(1, 5, phase=phase, idle=210.0)
    late.words |= {"open_looks": 40, "open_blocked_looks": 38, "open_cpu_ns": 3 * 10**9}
    late.words |= {"stuck_since_ns": time.monotonic_ns() - 209 * 10**9}
    [found] = killed(tmp_path, member(0, 6), late)
    spent, _, _ = lateness(found.missing[0], found.waits[0])
    assert spent[own] >= 0.94 * found.seconds
    whole = account(
        run_of(found.missing[0]), [found.missing[0], *[wait.ledger for wait in found.waits]], time.monotonic_ns()
    )
    assert whole.ranks[1].seconds["host_blocked"] == pytest.approx(210 - 3, abs=3)
    assert sum(whole.ranks[1].seconds.values()) == pytest.approx(whole.ranks[1].wall)


@pytest.mark.parametrize(
    ("looks", "blocked", "cpu", "expected"),
    [(2, 1, 0.1, 19.9), (2, 1, 6.0, 10.0), (10, 1, 0.1, 2.0), (2, 0, 0.1, 0.0)],
    ids=["it hardly computes", "it computes, too", "it queues for a CPU", "no look found it blocked"],
)
def test_the_cpu_time_of_the_process_says_more_than_few_looks(
    looks: int, blocked: int, cpu: float, expected: float
) -> None:
    words: dict[str, Any] = {"open_looks": looks, "open_blocked_looks": blocked, "open_cpu_ns": int(cpu * 1e9)}
    ledger = position(0, "compute", 20.0, device="cpu", stuck_since_ns=NOW - 20 * SECOND, **words)
    assert open_blocked(ledger, 20.0) == pytest.approx(expected)
    assert open_computed(ledger, 20.0) == pytest.approx(cpu)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"calls": 6}),
        ({"idle": 2.0}, {"phase": "host"}),
        ({"phase": "compute"}, {"phase": "host"}),
    ],
    ids=["both waited", "it was a short wait", "no rank waited"],
)
def test_no_rank_is_named(first: dict[str, Any], second: dict[str, Any], tmp_path: Path) -> None:
    second = dict(second)
    assert killed(tmp_path, member(0, 6, **first), member(1, second.pop("calls", 5), **second)) == []


def test_no_rank_is_named_if_a_ledger_of_the_group_is_not_here(tmp_path: Path) -> None:
    first, second = member(0, 6), member(1, 5, phase="host")
    for spec in (first, second):
        spec.slots[0]["size"] = 3
    assert killed(tmp_path, first, second) == []


def test_a_wait_that_never_ended_is_not_a_part_of_the_line_about_other_waits(tmp_path: Path) -> None:
    specs = member(0, 101, idle=40.0), member(1, 100, phase="host", idle=41.0, sign=40.0)
    for spec, step in zip(specs, ({"compute": 1.0, "straggler": 1.0}, {"compute": 2.0}), strict=True):
        spec.steps, spec.step = 100, step
    specs[0].slots[0]["straggler_ns"] = 100 * SECOND
    specs[0].words |= {"culprit": 2, "culprit_ns": 100 * SECOND}
    specs[1].words[f"late_own_ns+{LATE_FAMILIES.index('compute')}"] = 100 * SECOND
    specs[1].late = {"compute": 100.0}
    killed(tmp_path, *specs)
    ledgers, _ = read_directory(str(tmp_path), steps=True)
    found: dict[str, Any] = build_report(("lab", "r1"), ledgers, time.monotonic_ns())
    assert "rank 0 waited 100.0 s for rank 1, which was late by compute" in found["verdict"]["evidence"]


def test_a_rank_for_which_others_waited_only_where_it_is_told_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of what is told differ from the waits in their last digits."""
    monkeypatch.setattr("whyidle.verdict.headline.never_came", lambda case, rank: ({"straggler": 10.0}, 0.0))
    late: Any = SimpleNamespace(rank=1, groups={})
    charge = SimpleNamespace(rank=1, family="straggler", seconds=10.0 - 1e-9)
    case: Any = SimpleNamespace(charges=[charge], account=SimpleNamespace(ranks=[late, late]))
    assert not is_unexplained(case, late)
