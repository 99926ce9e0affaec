"""What a headline names: late ranks if they hold most of the lateness, otherwise what late ranks have in common."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support_ledgers import Spec, ended

from whyidle.ledger.directory import read_directory
from whyidle.verdict.accounts import RunAccount, account
from whyidle.verdict.places import most_of
from whyidle.verdict.verdict import verdict

pytestmark = pytest.mark.xdist_group("places")

REPLICAS, STAGES = 4, 8
SECOND = 1_000_000_000


def rank_of(replica: int, stage: int) -> int:
    return replica * STAGES + stage


def specs(late: dict[int, float], step: float = 0.1) -> list[Spec]:
    """Pipelines of eight stages, two on each node. ``late``: rank -> seconds by which it computes longer than the other
    stages of its pipeline in 100 steps. The others wait for it."""
    found = []
    for replica in range(REPLICAS):
        [(slow, by)] = [(rank, by) for rank, by in late.items() if rank // STAGES == replica] or [(-1, 0.0)]
        for stage in range(STAGES):
            rank = rank_of(replica, stage)
            waits = 0.0 if rank == slow else by
            slots = [
                {"key": 100 + replica, "size": STAGES, "pairwise": 1, "pipeline_ns": int(waits * SECOND)},
                {"key": 200 + stage, "size": REPLICAS},
            ]
            words = {"late_own_ns": int(by * SECOND)} if rank == slow else {}
            if waits:
                words = {"culprit": slow + 1, "culprit_ns": int(waits * SECOND)}
            found.append(
                Spec(
                    rank=rank,
                    world_size=REPLICAS * STAGES,
                    node=f"n{replica // 2}",
                    steps=100,
                    step={"compute": step - waits / 100, "pipeline": waits / 100},
                    slots=slots,
                    groups=[("pp p2p", {}, 1), ("dp", {}, 1)],
                    words=words,
                )
            )
    return found


def account_of(directory: Path, late: dict[int, float]) -> RunAccount:
    ended(directory, *specs(late))
    ledgers, problems = read_directory(str(directory), steps=True)
    assert not problems
    return account(("lab", "r1"), ledgers, time.monotonic_ns())


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> RunAccount:
    return account_of(tmp_path_factory.mktemp("mesh"), {})


ALL = range(REPLICAS * STAGES)
STAGE_7 = [rank_of(replica, 7) for replica in range(REPLICAS)]
STAGE_2 = [rank_of(replica, 2) for replica in range(REPLICAS)]
NODE_1 = [rank for rank in ALL if rank // STAGES >= 2]

# seconds by rank -> what has most of them
CASES: dict[str, tuple[dict[int, float], str]] = {
    "one rank": ({5: 9.0, 6: 1.0, 20: 0.5}, "rank 5"),
    "two ranks": ({5: 9.0, 20: 6.0, 6: 0.5}, "ranks 5 and 20"),
    "the worst of many ranks": ({5: 3.0, **{rank: 1.0 for rank in ALL if rank != 5}}, ""),
    "a stage": (dict.fromkeys(STAGE_7, 2.0), "all ranks of stage 7"),
    "a stage, unevenly": ({7: 3.0, 15: 2.0, 23: 1.0, 31: 1.5, 4: 1.0, 3: 1.0}, "ranks 7, 15 and 31"),
    "two stages": (dict.fromkeys([*STAGE_7, *STAGE_2], 2.0), "all ranks of stages 2 and 7"),
    "a node": (dict.fromkeys(NODE_1, 1.0), "all ranks on n1"),
    "most ranks of a node": ({rank: 1.0 + rank % 4 * (rank > 17) for rank in NODE_1}, "ranks on n1"),
    "a group": (dict.fromkeys(range(8, 16), 1.0), "all ranks of the group pp p2p (ranks 8, 9, 10 and 5 more)"),
    "two groups": (
        dict.fromkeys([*range(8), *range(24, 32)], 1.0),
        "all ranks of 2 groups pp p2p (ranks 0, 1, 2 and 13 more)",
    ),
    "more than half of all ranks": ({rank: 1.0 for rank in ALL if rank % STAGES < 5}, ""),
    "all ranks": (dict.fromkeys(ALL, 1.0), ""),
    "no rank": ({}, ""),
    "half of it at ranks without a ledger": ({5: 5.0, 400: 5.0}, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_names_what_has_most_of_the_seconds(case: str, mesh: RunAccount) -> None:
    spent, text = CASES[case]
    assert most_of(spent, mesh).text == text


def summary(directory: Path, late: dict[int, float]) -> tuple[str, list[int]]:
    found = verdict(account_of(directory, late))
    assert found is not None
    assert found["family"] == "straggler"
    return str(found["summary"]), [one["rank"] for one in found["late_ranks"]]  # type: ignore[index,attr-defined]


def test_a_slow_stage_is_named_and_not_one_of_its_ranks(tmp_path: Path) -> None:
    """All ranks of stage 7 compute 1.5 times as long as the others. Each has a quarter of the lateness."""
    late = dict(zip(STAGE_7, (3.6, 3.2, 3.3, 3.4), strict=True))
    said, ranks = summary(tmp_path, late)
    assert said == "all ranks of stage 7 are late: compute takes longer than on the others"
    assert ranks == [7, 31, 23, 15]  # all are listed


def test_one_late_rank_is_named_with_its_node(tmp_path: Path) -> None:
    said, ranks = summary(tmp_path, {7: 5.0, 12: 0.4, 20: 0.6})
    assert said == "rank 7 on n0 is late: compute takes longer than on the others"
    assert ranks[0] == 7
