"""Which ranks have not begun, and who waited for which rank before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest
from support_ledgers import SECOND, Spec, children, ended

from whyidle.ledger.causes import CAUSE
from whyidle.ledger.directory import read_directory, run_of
from whyidle.verdict.absent import not_begun
from whyidle.verdict.accounts import account
from whyidle.verdict.beginning import startup_waits
from whyidle.verdict.diagnosis import diagnose_afterwards
from whyidle.verdict.ends import never_sentences


@pytest.mark.parametrize(
    ("here", "on_the_node", "absent"),
    [([1], 2, [0]), ([0, 2], 4, [1, 3]), ([0, 1], 2, []), ([1], 0, [])],
    ids=["the first", "two of four", "all are here", "the number of ranks on the node is not known"],
)
def test_ranks_without_a_ledger_have_not_begun(
    here: list[int], on_the_node: int, absent: list[int], tmp_path: Path
) -> None:
    """The run has eight ranks. Those of other nodes are not known."""
    specs = [Spec(rank=rank, world_size=8, words={"local_world_size": on_the_node}) for rank in here]
    with children(tmp_path, *specs):
        ledgers, _ = read_directory(str(tmp_path))
        assert not_begun(ledgers) == absent


def test_ranks_of_a_run_that_has_ended_do_not_begin_any_more(tmp_path: Path) -> None:
    ended(tmp_path, Spec(rank=1, words={"local_world_size": 2}))
    ledgers, _ = read_directory(str(tmp_path))
    assert not_begun(ledgers) == []


@pytest.mark.parametrize(
    ("steps", "failed", "never"),
    [(0, True, True), (0, False, False), (3, True, False)],
    ids=["late", "no error", "trained"],
)
def test_ranks_that_had_not_begun_when_the_others_failed_are_named(
    steps: int, failed: bool, never: bool, tmp_path: Path
) -> None:
    for rank in range(2):
        ended(tmp_path, Spec(rank=rank, world_size=3, steps=steps, failed=failed, words={"local_world_size": 3}))
    ledgers, _ = read_directory(str(tmp_path), steps=True)
    said = "rank 2 has left no ledger here, and may not have begun when the others failed"
    assert never_sentences(ledgers) == [said] * never
    assert (said in diagnose_afterwards(ledgers).sentence) == never


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ((0.1, 16.1), {"rank": 0, "seconds": pytest.approx(16.0), "waiting": [1]}),
        ((0.1, 2.0), None),
        ((16.0, 16.1), None),
    ],
    ids=["for the first", "for a short time", "both"],
)
def test_says_who_waited_before_the_first_step(
    waits: tuple[float, float], expected: dict[str, object] | None, tmp_path: Path
) -> None:
    at = CAUSE["collective"]
    for rank in range(2):
        ended(tmp_path, Spec(rank=rank, startup=20.0, steps=5, step={"compute": 0.1}))
    ledgers, _ = read_directory(str(tmp_path), steps=True)
    for ledger in ledgers:
        before = [*ledger.words["window_cause_ns"]]
        before[at] = int(waits[ledger.rank] * SECOND)
        ledger.words["window_cause_ns"] = tuple(before)
    assert startup_waits(account(run_of(ledgers[0]), ledgers, 0)) == expected
