"""Ranks that a signal ended after their work: they have ended, and were not killed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from support_ledgers import Spec, children

from whyidle.advisor.goodput import goodput
from whyidle.ledger.directory import read_directory
from whyidle.ledger.layout import CLEAN, FAILED
from whyidle.ledger.reader import Ledger
from whyidle.verdict.ends import (
    end_of,
    end_sentences,
    failed_sentences,
    finish_sentences,
    may_have_finished,
    state_of,
)

STEP = {"compute": 0.1}


def killed(folder: Path, *specs: Spec, still: float, returned: bool = False) -> list[Ledger]:
    """Ranks that were killed. Their last steps ended ``still`` seconds before their last signs of life."""
    with children(folder, *specs) as ranks:
        for rank in ranks:
            rank.kill()
        ledgers = sorted(read_directory(str(folder), steps=True)[0], key=lambda ledger: ledger.rank)
    for ledger in ledgers:
        end = ledger.ring[-1].end_ns
        ledger.words.update(heartbeat_ns=(end + round(still * 1e9),), returned_ns=(end + 1 if returned else 0,))
    return ledgers


def spec(rank: int = 0, steps: int = 30, phase: str = "host") -> Spec:
    return Spec(rank=rank, steps=steps, step=STEP, phase=phase, words={"batches": 30})


def test_a_rank_whose_training_had_returned_has_ended(tmp_path: Path) -> None:
    [ledger] = killed(tmp_path, spec(), still=0.01, returned=True)
    assert (end_of(ledger), state_of([ledger])) == ("ended", "ended")
    assert end_sentences([ledger]) == finish_sentences([ledger], 0) == []
    assert goodput(("lab", "r1"), [ledger], time.monotonic_ns()).failures == 0


@pytest.mark.parametrize("phase", ["data", "compute", "collective", "checkpoint"])
def test_a_rank_that_went_on_after_its_optimizer_was_deleted_was_killed(phase: str, tmp_path: Path) -> None:
    [ledger] = killed(tmp_path, spec(phase=phase), still=5.0, returned=True)
    assert state_of([ledger]) == "killed"


def test_a_rank_that_stood_still_after_its_last_step_may_have_finished(tmp_path: Path) -> None:
    ledgers = killed(tmp_path, spec(0), spec(1), still=3.5)
    assert state_of(ledgers) == "ended"
    assert end_sentences(ledgers) == []
    assert finish_sentences(ledgers, 0) == [
        "ranks 0 and 1 were ended by a signal, 3.5 s after their last step: they may have finished"
    ]
    found = goodput(("lab", "r1"), ledgers, time.monotonic_ns())
    assert (found.attempts[0].clean, found.failures) == (None, 0)


def test_says_where_a_rank_stood_that_may_have_hung(tmp_path: Path) -> None:
    [ledger] = killed(tmp_path, spec(), still=3.5)
    ledger.strings["stuck_line"] = "train.py:60 upload"
    ledger.words["stuck_since_ns"] = (ledger.ring[-1].end_ns,)
    assert finish_sentences([ledger], 0) == [
        "rank 0 was ended by a signal, 3.5 s after its last step, at train.py:60 upload: it may have finished, or hung"
        " there"
    ]


@pytest.mark.parametrize(("line", "there"), [("", ""), ("train.py:60 upload", ", or hang there")])
def test_a_live_rank_may_have_finished_unless_another_one_has_not(line: str, there: str, tmp_path: Path) -> None:
    ledgers = killed(tmp_path, spec(0), spec(1), still=0.0)
    ended, living = replace(ledgers[0], words=ledgers[0].words | {"ended": (CLEAN,)}), replace(ledgers[1], alive=True)
    living.strings["stuck_line"] = line
    living.words["stuck_since_ns"] = (living.ring[-1].end_ns,)
    now_ns = living.ring[-1].end_ns + 9_000_000_000
    living.words["heartbeat_ns"] = (now_ns,)
    assert finish_sentences([ended, living], now_ns)[0].endswith(f"the training may have finished{there}")
    failed = replace(ended, words=ended.words | {"ended": (FAILED,)})
    assert finish_sentences([failed, living], now_ns) == []


def test_live_ranks_that_have_left_their_main_programs_wait_for_their_threads(tmp_path: Path) -> None:
    ledgers = [replace(one, alive=True) for one in killed(tmp_path, spec(0), spec(1, phase="shutdown"), still=0.0)]
    now_ns = ledgers[1].phase_since_ns + 6_900_000_000
    for ledger in ledgers:
        ledger.words["heartbeat_ns"] = (now_ns,)
    assert finish_sentences(ledgers[1:], now_ns) == [
        "rank 1 has left its main program, but has not exited (for 6.9 s): it waits for its threads, or for exit"
        " handlers"
    ]
    assert "the training may have finished" in finish_sentences(ledgers, now_ns)[0]
    assert finish_sentences([ledgers[1], ledgers[1]], now_ns)[0].endswith(
        "they wait for their threads, or for exit handlers"
    )


def test_a_live_rank_that_has_failed_waits_for_its_threads(tmp_path: Path) -> None:
    [ledger] = [replace(one, alive=True) for one in killed(tmp_path, spec(phase="shutdown"), still=0.0)]
    now_ns = ledger.phase_since_ns + 6_900_000_000
    ledger.strings.update(failure="ValueError - train.py:9 main", stuck_threads="runs//monitor.py:5 watch/GpuMonitor|")
    ledger.words["stuck_since_ns"] = (ledger.phase_since_ns,)
    assert failed_sentences([ledger], now_ns) == [
        "rank 0 has ended with an error: ValueError at train.py:9 main, but has not exited (for 6.9 s): it waits for"
        " its threads, or for exit handlers (its thread GpuMonitor is at monitor.py:5 watch)"
    ]
    assert failed_sentences([replace(ledger, alive=False)], now_ns) == []


@pytest.mark.parametrize(("status", "end"), [(0, "ended"), (3, "failed")])
def test_the_status_of_a_hard_exit_tells_how_a_rank_ended(status: int, end: str, tmp_path: Path) -> None:
    [ledger] = killed(tmp_path, spec(phase="data"), still=0.0)
    assert end_of(ledger) == "killed"
    ledger.words["exited"] = (1 + status,)
    ledger.strings["failure"] = "os._exit(3) - train.py:9 watch" if status else ""
    assert (end_of(ledger), state_of([ledger])) == (end, end)
    said = ["rank 0 ended with an error: os._exit(3) at train.py:9 watch"] if status else []
    assert end_sentences([ledger]) == said
    found = goodput(("lab", "r1"), [ledger], time.monotonic_ns())
    assert (found.failures, found.attempts[0].failed) == (bool(status), bool(status))


def test_ranks_of_which_one_place_is_not_known_stand_nowhere(tmp_path: Path) -> None:
    ledgers = killed(tmp_path, spec(0), spec(1), still=3.5)
    ledgers[0].strings["stuck_line"] = "train.py:60 upload"
    ledgers[0].words["stuck_since_ns"] = (ledgers[0].ring[-1].end_ns,)
    assert finish_sentences(ledgers, 0)[0].endswith("after their last step: they may have finished")


def test_a_silent_rank_is_not_said_to_have_finished(tmp_path: Path) -> None:
    [ledger] = killed(tmp_path, spec(), still=3.5)
    ledger.alive = True
    now = ledger.last_sign_ns + 30 * 10**9
    assert finish_sentences([ledger], now) == ["rank 0 has given no sign of life for 30.0 s"]


def test_a_rank_that_was_killed_soon_after_a_step_was_killed(tmp_path: Path) -> None:
    [ledger] = killed(tmp_path, spec(), still=0.5)
    assert state_of([ledger]) == "killed"
    assert goodput(("lab", "r1"), [ledger], time.monotonic_ns()).failures == 1


def test_a_pause_as_long_as_one_of_its_steps_does_not_count(tmp_path: Path) -> None:
    """It logs or evaluates for 3 s now and then."""
    [ledger] = killed(tmp_path, spec(), still=3.5)
    ledger.ring[20].wall_ns = 3_000_000_000
    assert state_of([ledger]) == "killed"


def test_ranks_that_wait_for_one_that_stands_still_were_killed(tmp_path: Path) -> None:
    """It hung in the loop's own code."""
    ledgers = killed(tmp_path, spec(0), spec(1, phase="collective"), still=60.0)
    assert may_have_finished(ledgers) == []
    assert state_of(ledgers) == "killed"


def test_ranks_at_different_steps_were_killed(tmp_path: Path) -> None:
    assert state_of(killed(tmp_path, spec(0, steps=29), spec(1), still=10.0)) == "killed"
