"""What the tests with torch's CUDA build would notice: their checks, on reports that are made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cudastandin.cases import CASES, Case
from cudastandin.checks import family_is_right, late_rank_is_named, seconds_agree, share_agrees
from cudastandin.lab import Outcome, Rank
from cudastandin.truth import KINDS

from whyidle.ledger.causes import CAUSES, OUTSIDE_CAUSES
from whyidle.verdict.words import UNSEEN

WALL = 10.0
HOST_BOUND, WAITED = 6.0, 3.0
NAMED = "rank 1 is late: compute takes longer than on the others"


def rank(number: int, truth: dict[str, float], seconds: dict[str, float], *, gaps: float | None = None) -> Rank:
    reported = {
        "rank": number,
        "wall_seconds": WALL,
        "gap_seconds": gaps,
        "seconds": dict.fromkeys(CAUSES, 0.0) | seconds,
        "outside_seconds": dict.fromkeys(OUTSIDE_CAUSES, 0.0),
    }
    return Rank({}, reported, dict.fromkeys(KINDS, 0.0) | truth, 0, {}, [], [])


def outcome(case: Case, ranks: list[Rank], family: str, explained: dict[str, float], summary: str = "") -> Outcome:
    share = explained[family] / WALL / len(ranks)
    verdict: dict[str, Any] = {"family": family, "share": share, "summary": summary, "late_ranks": []}
    return Outcome(case, ranks, {"verdict": verdict, "explained": explained}, "", 0.0)


def launches(name: str, waits: float = WAITED, **moved: float) -> list[Rank]:
    """Ranks whose idle time counts as compute. ``waits``: as whyidle reports."""
    truth = {"busy": WALL - HOST_BOUND - WAITED, "idle": HOST_BOUND, "straggler": WAITED}
    seconds = {"compute": WALL - waits - sum(moved.values()), "straggler": waits, **moved}
    return [rank(number, truth, seconds) for number in range(CASES[name].ranks)]


@pytest.mark.parametrize(
    ("name", "waits", "moved", "count"),
    [
        ("ddp-launches", WAITED + 0.5, {}, 0),
        ("ddp-launches", WAITED + 0.7, {}, 2),  # waits, and the sum of busy and idle time
        ("ddp-launches", WAITED, {"data_read": 0.4}, 1),
        ("hsdp-launches", WAITED + 0.7, {}, 0),
        ("single-launches", WAITED + 0.4, {}, 2),
        ("clips-fsdp2", WAITED + 0.4, {}, 2),
    ],
)
def test_launch_bound_ranks_may_only_differ_in_waits(
    name: str, waits: float, moved: dict[str, float], count: int
) -> None:
    ranks = launches(name, waits, **moved)
    wrong = [*seconds_agree(outcome(CASES[name], ranks, "compute", {"compute": 1.0}))]
    assert len(wrong) == count * len(ranks), wrong


@pytest.mark.parametrize(("busy", "right"), [(8.5, True), (8.7, False), (7.9, True), (7.7, False)])
def test_idle_time_that_nobody_looked_for_may_count_as_compute_and_not_the_reverse(busy: float, right: bool) -> None:
    known = rank(0, {"busy": 8.0, "idle": 0.4, "straggler": 1.6}, {"compute": busy, "straggler": 1.6})
    case = replace(CASES["ddp-none"], together=())
    wrong = [one for one in seconds_agree(outcome(case, [known], "compute", {"compute": 1.0})) if "busy" in one]
    assert (wrong == []) == right


@pytest.mark.parametrize(
    ("family", "explained", "right"),
    [
        ("compute", {"compute": 13.9}, True),  # 14 of 20 seconds
        ("compute", {"compute": 19.9}, True),  # with the waits for late hosts
        ("compute", {"compute": 12.9}, False),
        ("host", {"host": 9.0, "compute": 5.0}, True),
        ("straggler", {"straggler": 6.1}, True),
        ("straggler", {"straggler": 8.1}, False),
    ],
)
def test_shares_of_launch_bound_ranks_are_compared(family: str, explained: dict[str, float], right: bool) -> None:
    found = outcome(CASES["ddp-launches"], launches("ddp-launches"), family, explained)
    assert ([*share_agrees(found)] == []) == right


@pytest.mark.parametrize(
    ("name", "family", "right"),
    [
        ("ddp-launches", "compute", True),
        ("ddp-launches", "network", False),
        ("single-launches", "straggler", False),
        ("clips-fsdp2", "compute", True),
        ("clips-fsdp2", "straggler", False),
    ],
)
def test_only_compute_may_stand_for_host_where_nobody_looked(name: str, family: str, right: bool) -> None:
    found = outcome(CASES[name], launches(name), family, {family: 1.0}, f"a reason, {UNSEEN}")
    assert ([*family_is_right(found)] == []) == right


@pytest.mark.parametrize(("name", "right"), [("clips-fsdp2", False), ("ddp-slow-link", False), ("ddp-launches", True)])
def test_no_rank_is_late_where_none_is_slow(name: str, right: bool) -> None:
    found = outcome(CASES[name], launches(name), "straggler", {"straggler": 1.0}, NAMED)
    assert ([*late_rank_is_named(found)] == []) == right


def test_cases_with_a_slow_rank_name_it() -> None:
    found = outcome(CASES["ddp-slow-rank"], launches("ddp-slow-rank"), "straggler", {"straggler": 1.0}, NAMED)
    assert [*late_rank_is_named(found)] == ["late ranks: [], and not rank 1"]
