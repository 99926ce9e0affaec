"""Ranks that wait in different collectives of one group. Real ranks: metric_skipped_on_one_rank of tests/reports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from whyidle.ledger.causes import COLLECTIVE_OPS
from whyidle.ledger.layout import CLEAN, FAILED
from whyidle.ledger.reader import Ledger, Slot
from whyidle.verdict.operations import differ, places, sentences


def slot(calls: int = 9, **passed: int) -> Slot:
    return cast(Slot, SimpleNamespace(index=0, key=7, pairwise=False, calls=calls, label="world", bytes=passed))


def rank(
    number: int, its: Slot, ended: int = 0, *, alive: bool = False, since_ns: int = 0, line: str = "", **calls: int
) -> Ledger:
    left = ended == CLEAN
    position = SimpleNamespace(phase="shutdown" if left else "collective", slot=-1 if left else 0, since_ns=since_ns)
    return cast(
        Ledger,
        SimpleNamespace(
            rank=number,
            attempt=0,
            slots=(its,),
            ended=ended,
            alive=alive,
            position=position,
            has_returned=False,
            exited=0,
            device="cpu",
            calls=(),
            open_group_number=0,
            open_peer_rank=-1,
            strings={"stuck_line": line, "failure": ""},
            stuck_since_ns=1 if line else 0,
            phase_since_ns=since_ns,
            words={"collective_calls": [calls.get(op, 0) for op in COLLECTIVE_OPS]},
        ),
    )


@pytest.mark.parametrize(
    ("passed", "found"),
    [
        ([{"all_reduce": 80}, {"all_reduce": 80}], False),
        ([{"all_reduce": 80, "gather": 4}, {"all_reduce": 80}], False),  # the root of a gather
        ([{"all_reduce": 80, "all_gather": 4}, {"all_reduce": 120}], True),
        ([{"all_reduce": 80}, {"all_reduce": 80}, {"all_reduce": 40, "barrier": 1}], True),
    ],
)
def test_ranks_differ_if_each_has_passed_more_to_some_operation(passed: list[dict[str, int]], found: bool) -> None:
    assert differ([slot(**each) for each in passed]) is found


def pair(**kept: Any) -> list[Ledger]:
    return [rank(0, slot(all_reduce=80, all_gather=4), **kept), rank(1, slot(all_reduce=120), **kept)]


@pytest.mark.parametrize(("ended", "said"), [(FAILED, True), (0, True), (CLEAN, False)])
def test_after_the_end_only_ranks_that_failed_or_were_killed_are_named(ended: int, said: bool) -> None:
    expected = (
        "rank 0 waited in another collective than rank 1: it has called all_gather where rank 1 has called all_reduce"
    )
    assert sentences(pair(ended=ended), 0, 5.0) == [expected] * said


@pytest.mark.parametrize(("seconds", "said"), [(4, False), (6, True)])
def test_live_ranks_are_named_after_a_long_wait(seconds: int, said: bool) -> None:
    open_call = [rank(0, slot(all_gather=4), alive=True), rank(1, slot(), alive=True)]  # rank 1's is not counted yet
    assert (
        sentences(open_call, seconds * 1_000_000_000, 5.0)
        == ["rank 0 waits in another collective than rank 1: it has called all_gather, and rank 1 has not"] * said
    )
    found = sentences(pair(alive=True), seconds * 1_000_000_000, 5.0)
    assert [sentence.startswith("rank 0 waits in another collective") for sentence in found] == [True] * said


def test_calls_without_bytes_tell_ranks_apart() -> None:
    """A barrier passes no bytes."""
    found = [rank(0, slot(), alive=True, all_reduce=8), rank(1, slot(), alive=True, all_reduce=7, barrier=1)]
    said = "rank 0 waits in another collective than rank 1: it has called all_reduce where rank 1 has called barrier"
    assert sentences(found, 6_000_000_000, 5.0) == [said]


@pytest.mark.parametrize(("alive", "waits"), [(True, "waits"), (False, "waited")])
def test_a_rank_that_waits_for_one_that_has_called_something_else_and_ended_is_named(alive: bool, waits: str) -> None:
    alone = rank(0, slot(), alive=alive, all_reduce=8)
    ended = [rank(number, slot(), CLEAN, all_reduce=7, barrier=1) for number in (1, 2)]
    said = f"rank 0 {waits} in another collective than rank 1: it has called all_reduce where rank 1 has called barrier"
    assert sentences([alone, *ended], 6_000_000_000, 5.0) == [said]
    assert not sentences([alone, rank(1, slot(8), CLEAN, all_reduce=7)], 6_000_000_000, 5.0)  # it is missing
    alone.position.phase = "host"  # type: ignore[misc]
    assert not sentences([alone, *ended], 6_000_000_000, 5.0)


@pytest.mark.parametrize(
    ("error", "seconds", "said"), [("RuntimeError", 12, 1), ("KeyError", 12, 0), ("RuntimeError", 2, 0)]
)
def test_a_rank_that_failed_after_such_a_wait_is_named(error: str, seconds: int, said: int) -> None:
    failed = rank(0, slot(), FAILED, all_reduce=8)
    failed.position.phase = "host"  # type: ignore[misc]
    failed.strings["failure"] = f"{error} - train.py:4 f"
    failed.calls = [SimpleNamespace(slot=0, ns=seconds * 10**9)]  # type: ignore[misc]
    found = sentences([failed, rank(1, slot(), CLEAN, all_reduce=7, barrier=1)], 0, 5.0)
    assert len(found) == said
    assert all("it has called all_reduce where rank 1 has called barrier" in sentence for sentence in found)


def test_ranks_in_different_process_groups_of_the_same_ranks_are_named() -> None:
    found = [rank(number, slot(), alive=True, line=f"t.py:{number} f") for number in range(2)]
    assert not sentences(found, 6_000_000_000, 5.0)
    found[1].open_group_number = 2  # type: ignore[misc]
    assert sentences(found, 6_000_000_000, 5.0) == [
        "ranks 0 and 1 wait in different process groups that have the same ranks: rank 0 at t.py:0 f and rank 1 at"
        " t.py:1 f"
    ]


def test_live_ranks_in_different_calls_of_a_group_are_named() -> None:
    """The sizes of their tensors may differ, for example. After the end, `unentered` tells their calls."""
    found = [rank(0, slot(8, all_reduce=80), alive=True), rank(1, slot(9, all_reduce=80), alive=True)]
    said = "rank 0 is in call 8 of group world, and rank 1 is in call 9"
    assert sentences(found, 6_000_000_000, 5.0) == [said]
    assert not sentences([rank(0, slot(8), FAILED), rank(1, slot(9), FAILED)], 0, 5.0)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("t.py:4 f", "t.py:9 g", "t.py:9 g"), "rank 0 at t.py:4 f and ranks 1 and 2 at t.py:9 g"),
        (("t.py:9 g", "t.py:9 g", "t.py:9 g"), ""),
        (("t.py:4 f", "", "t.py:9 g"), ""),
    ],
)
def test_lines_tell_that_ranks_may_be_in_different_collectives(lines: tuple[str, ...], said: str) -> None:
    found = [rank(number, slot(), alive=True, line=line) for number, line in enumerate(lines)]
    expected = f"ranks are perhaps in different collectives: {said}"
    assert places(found, 6_000_000_000, 5.0) == [expected] * bool(said)
    assert not sentences(found, 6_000_000_000, 5.0)
    assert not places([rank(0, slot(), CLEAN, line="t.py:4 f"), rank(1, slot(), CLEAN, line="t.py:9 g")], 0, 5.0)
