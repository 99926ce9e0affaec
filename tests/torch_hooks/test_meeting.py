"""The recording of a rank begins when it begins to meet the others, if it is known then which rank it is."""

from __future__ import annotations

import pytest

from whyidle.torch_hooks.identity import Meeting, identify, meeting_of
from whyidle.torch_hooks.machine import NOT_ENTERED
from whyidle.torch_hooks.session import Session

RANK_1_OF_2 = {"RANK": "1", "WORLD_SIZE": "2"}
HERE = "127.0.0.1"


@pytest.mark.parametrize(
    ("env", "world", "rank", "meeting"),
    [
        (RANK_1_OF_2, -1, -1, Meeting(1, 2, "")),
        (RANK_1_OF_2, 2, 1, Meeting(1, 2, "")),
        (RANK_1_OF_2, 1, 0, None),
        (RANK_1_OF_2, 16, -1, None),  # the environment is that of a node, or of a batch script
        (RANK_1_OF_2, 16, 9, Meeting(9, 16, "")),
        ({"RANK": "0", "WORLD_SIZE": "1"}, -1, -1, None),
        ({}, 2, 1, Meeting(1, 2, "")),  # a program that starts its ranks itself
        ({}, 2, 2, None),
        ({}, 2, -1, None),
        (RANK_1_OF_2 | {"RAY_JOB_ID": "01000000"}, -1, -1, None),  # it trains in another thread
    ],
)
def test_wakes_if_it_is_known_which_rank_this_is(
    env: dict[str, str], world: int, rank: int, meeting: Meeting | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "RAY_JOB_ID", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    session, woken = Session(), []
    session.asleep = True
    monkeypatch.setattr(session, "wake", lambda meeting: woken.append(meeting))
    assert session.meeting_begins(world, rank, "") == NOT_ENTERED
    assert woken == [meeting] * (meeting is not None)


@pytest.mark.parametrize(
    ("env", "init_method", "address"),
    [
        ({"MASTER_ADDR": HERE}, "env://", HERE),
        ({"MASTER_ADDR": "n0"}, f"tcp://{HERE}:29500", HERE),
        ({}, "tcp://[::1]:29500?timeout=9", "::1"),
        ({"MASTER_ADDR": HERE}, "", HERE),
    ],
)
def test_reads_where_the_ranks_meet(env: dict[str, str], init_method: str, address: str) -> None:
    assert meeting_of(env, 4, 3, init_method) == Meeting(3, 4, address)


@pytest.mark.parametrize(
    ("env", "meeting", "place"),
    [
        ({}, Meeting(3, 4, "n0"), (3, 4, 3, 0)),
        ({}, Meeting(3, 4, HERE), (3, 4, 3, 4)),  # they all are on this node
        (RANK_1_OF_2 | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, Meeting(1, 2, HERE), (1, 2, 0, 1)),
        # The program has given the ranks in another order.
        (RANK_1_OF_2 | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, Meeting(0, 2, HERE), (0, 2, 1, 2)),
        # One process of a launcher per node, which has started eight ranks.
        (RANK_1_OF_2 | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, Meeting(9, 16, "n0"), (9, 16, 9, 0)),
    ],
)
def test_what_the_program_says_comes_before_the_environment(
    env: dict[str, str], meeting: Meeting, place: tuple[int, int, int, int]
) -> None:
    found = identify(env, meeting)
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == place
