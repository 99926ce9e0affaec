"""What looks say of a loop's own time: shares of looks become shares of seconds, and their sum stays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from whyidle.ledger.below import BLOCKERS
from whyidle.ledger.causes import CAUSES
from whyidle.verdict.accounts import RankAccount, RunAccount
from whyidle.verdict.gaps import NO_GAPS, Gaps
from whyidle.verdict.sampled import (
    acts_elsewhere,
    acts_while_blocked,
    enough,
    move,
    move_lateness,
    moved_from,
    reason,
    sentences,
    too_few,
)

NONE = (0, 0, 0)


def ledger(
    data: tuple[int, int, int] = NONE,
    logging: tuple[int, int, int] = NONE,
    saving: tuple[int, int, int] = NONE,
    acting: tuple[int, int, int] = NONE,
    testing: tuple[int, int, int] = NONE,
    **whole: int,
) -> Any:
    words = {
        "data_looks": data,
        "logging_looks": logging,
        "saving_looks": saving,
        "acting_looks": acting,
        "testing_looks": testing,
        "testing_blocked_on": (0,) * len(BLOCKERS),
        "data_blocked_on": (data[0], *[0] * (len(BLOCKERS) - 1)),
        "logging_blocked_on": (0,) * len(BLOCKERS),
        "acting_blocked_on": (0,) * len(BLOCKERS),
        "saving_blocked_on": (saving[0], *[0] * (len(BLOCKERS) - 1)),
        **{name: (whole.get(name, 0),) for name in ("blocked_looks", "host_looks", "work_looks")},
        "base_looked_ns": (0,),
        "base_looked_square": (0,),
    }
    # Looks at equal distances.
    words |= {name.replace("looks", "looked_ns"): looks for name, looks in words.items() if name.endswith("_looks")}
    strings = {
        "data_below": "train.py:116 get_batch",
        "logging_below": "hooks.py:3 on_log",
        "saving_below": "train.py:9 save_weights",
        "acting_below": "env.py:5 step",
    }
    return SimpleNamespace(words=words, strings=strings, rank=0, device="cpu")


def seconds(**known: float) -> dict[str, float]:
    return dict.fromkeys(CAUSES, 0.0) | known


def moved_by(spent: dict[str, float], known: Any) -> Any:
    return move(spent, known, enough([known]), sum(spent.values()))


def test_looks_of_all_ranks_add_up() -> None:
    known = [ledger((2, 0, 0), blocked_looks=2) for _ in range(3)]
    assert enough(known[:2]) == frozenset()
    spent = dict.fromkeys(CAUSES, 0.0) | {"host_blocked": 10.0}
    assert move(spent, known[0], enough(known), 10.0) == {("host_blocked", "data_read"): pytest.approx(10.0)}


@pytest.mark.parametrize(("looks", "whole", "said"), [(4, 29, True), (2, 29, False), (5, 29, False), (0, 29, False)])
def test_a_few_looks_that_found_something_else_are_said(looks: int, whole: int, said: bool) -> None:
    """So that nobody believes a verdict of compute that they contradict."""
    known = [cast(Any, SimpleNamespace(newest=ledger((0, 0, looks), work_looks=whole)))]
    expected = f"{looks} of {whole} looks found it making or awaiting batches, which are too few to count"
    assert too_few(known) == (expected if said else "")


def test_shares_of_looks_move_and_the_sum_closes() -> None:
    spent = seconds(host_blocked=24.0, host=10.0, compute=50.0, evaluation=10.0)
    moved = moved_by(spent, ledger((90, 5, 10), (0, 5, 0), blocked_looks=100, host_looks=20, work_looks=100))
    assert spent["data_read"] == pytest.approx(21.6)
    assert spent["data_cpu"] == pytest.approx(2.5 + 5.0 + 1.0)
    assert spent["logging"] == pytest.approx(2.5)
    assert sum(spent.values()) == pytest.approx(94.0)
    assert moved["host_blocked", "data_read"] == pytest.approx(21.6)


def test_a_wait_for_a_thread_that_computes_is_cpu_time_of_the_save() -> None:
    """A quarter of the looks found the thread itself, or the one that it waited for, blocked in a call."""
    known = ledger(saving=(40, 0, 0), logging=(10, 0, 0), blocked_looks=100)
    known.words["saving_blocked_on"] = (10, *[0] * (len(BLOCKERS) - 1))
    spent = seconds(host_blocked=20.0, compute=80.0)
    moved_by(spent, known)
    assert (spent["checkpoint_write"], spent["checkpoint_cpu"], spent["logging"]) == pytest.approx((2.0, 6.0, 2.0))


def test_looks_at_an_idle_device_move_the_part_of_compute_that_they_stand_for() -> None:
    """200 of 1000 looks found the device idle in compute, and 50 of 100 of these below a function that makes batches.
    A fifth of all looks below it found the thread blocked."""
    known = ledger((0, 10, 50), host_looks=20, work_looks=100)
    known.device, known.looks, known.empty_looks = "cuda:0", 1000, 200
    known.words |= {"empty_host_looks": (0,), "looked_ns": (0,)}
    known.words["data_blocked_on"] = (12, *[0] * (len(BLOCKERS) - 1))
    spent = seconds(compute=70.0, evaluation=20.0, host=10.0)
    moved = moved_by(spent, known)
    assert (spent["data_cpu"], spent["data_read"]) == (pytest.approx(12.0), pytest.approx(3.0))
    assert (spent["compute"], spent["evaluation"], spent["host"]) == pytest.approx((70 * 8 / 9, 20 * 8 / 9, 5.0))
    assert sum(moved.values()) == pytest.approx(15.0)
    known.looks, known.empty_looks = 7, 2  # too few to know how long the device was idle
    spent = seconds(compute=70.0, evaluation=20.0, host=10.0)
    moved_by(spent, known)
    assert spent["compute"] == 70.0


def test_saves_that_no_hook_knows_move_to_checkpoints() -> None:
    known = ledger(saving=(30, 0, 20), blocked_looks=40, work_looks=100)
    spent = seconds(host_blocked=4.0, compute=50.0)
    rank = SimpleNamespace(rank=0, wall=54.0, seconds=spent, moved=moved_by(spent, known), newest=known)
    assert (spent["checkpoint_write"], spent["checkpoint_cpu"]) == (pytest.approx(3.0), pytest.approx(10.0))
    ranks = [cast(RankAccount, rank)]
    assert reason(ranks, "checkpoint_cpu") == "the loop saves in its own way: `save_weights` (train.py:9)"
    assert reason(ranks, "checkpoint_write").endswith("`save_weights` (train.py:9), on files")


def test_experience_is_a_rollout_but_a_blocked_environment_stays_blocked() -> None:
    known = ledger(acting=(30, 0, 20), blocked_looks=40, work_looks=100)
    spent = seconds(host_blocked=4.0, compute=40.0, evaluation=10.0)
    moved = moved_by(spent, known)
    assert moved == {("compute", "rollout"): pytest.approx(10.0)}
    assert (spent["rollout"], spent["evaluation"], spent["host_blocked"]) == (pytest.approx(10.0), 10.0, 4.0)
    rank = cast(RankAccount, SimpleNamespace(rank=0, wall=54.0, seconds=spent, moved=moved, newest=known))
    account = cast(RunAccount, SimpleNamespace(ranks=[rank]))
    [said] = sentences(account)
    assert said.startswith("19 % (± 3) of the loop is collecting experience, most of it below `step` (env.py:5)")
    assert said.endswith("(sampled, 20 looks)")
    assert acts_while_blocked([rank])
    assert not acts_elsewhere([rank])
    known.words["acting_blocked_on"] = tuple(30 * (name == "a socket") for name in BLOCKERS)
    assert acts_elsewhere([rank])


def test_environments_of_an_evaluation_are_evaluation() -> None:
    known = ledger(testing=(5, 10, 20), host_looks=20, blocked_looks=10, work_looks=100)
    spent = seconds(host_blocked=4.0, host=8.0, compute=60.0, evaluation=10.0)
    assert moved_by(spent, known) == {("host", "evaluation"): 4.0, ("compute", "evaluation"): pytest.approx(14.0)}
    assert (spent["evaluation"], spent["host_blocked"]) == (pytest.approx(28.0), 4.0)
    known.device = "cuda:0"  # it is idle there
    assert moved_by(seconds(host=8.0, compute=60.0), known) == {}


def test_what_looks_move_also_moves_what_made_a_rank_late() -> None:
    def rank(number: int, moved: float, late: float) -> Any:
        group = SimpleNamespace(late_own={"compute": late / 2})
        return SimpleNamespace(
            rank=number,
            moved={("compute", "logging"): moved},
            gaps=None,
            gaps_by=NO_GAPS,
            late={"compute": late},
            groups={1: group},
        )

    ranks = [rank(0, 1.0, 0.0), rank(1, 7.0, 8.0)]
    move_lateness(ranks)
    assert ranks[1].late == {"compute": pytest.approx(2.0), "host": pytest.approx(6.0)}
    assert ranks[1].groups[1].late_own == {"compute": pytest.approx(1.0), "host": pytest.approx(3.0)}
    assert ranks[0].late == {"compute": 0.0}


@pytest.mark.parametrize(("error", "moves"), [(2.9, True), (3.1, False), (None, True)])
def test_a_rank_whose_device_had_no_work_in_compute_was_late_by_its_host(error: float | None, moves: bool) -> None:
    def rank(number: int, gaps: float, late: float) -> Any:
        by = Gaps(gaps, error)
        return SimpleNamespace(rank=number, moved={}, gaps=gaps, gaps_by=by, late={"compute": late}, groups={})

    ranks = [rank(0, 1.0, 0.0), rank(1, 7.0, 8.0)]
    move_lateness(ranks)
    host = 6.0 if moves else 0.0
    assert (ranks[1].late["compute"], ranks[1].late.get("host", 0.0)) == pytest.approx((8.0 - host, host))


@pytest.mark.parametrize(
    ("looks", "whole"),
    [((4, 0, 0), 4), ((50, 0, 0), 0)],
    ids=["too few", "a ledger that contradicts itself"],
)
def test_nothing_moves_without_enough_looks(looks: tuple[int, int, int], whole: int) -> None:
    spent = seconds(host_blocked=24.0)
    assert moved_by(spent, ledger(looks, blocked_looks=whole)) == {}
    assert spent["host_blocked"] == 24.0


def test_no_cause_becomes_negative() -> None:
    spent = seconds(host_blocked=-0.001)
    moved_by(spent, ledger((9, 0, 0), blocked_looks=9))
    assert spent["data_read"] == 0.0


def test_headline_and_evidence_name_the_function_and_what_blocks_it() -> None:
    known = ledger((90, 0, 0), blocked_looks=100)
    rank = RankAccount(cast(Any, known), steps=100, wall=30.0)
    rank.seconds = seconds(host_blocked=24.0)
    rank.moved = moved_by(rank.seconds, known)
    assert moved_from(rank, "host_blocked") == pytest.approx(21.6)
    said = "the loop makes or awaits its batches itself, and is blocked there: `get_batch` (train.py:116), on files"
    assert reason([rank], "data_read") == said
    assert reason([rank], "data_cpu") == reason([rank], "host") == ""
    [sentence] = sentences(RunAccount("r", [rank], []))
    assert sentence.startswith("72 % (± 3) of the loop is making or awaiting batches, most of it below `get_batch`")
