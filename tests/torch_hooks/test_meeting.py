"""The recording of a rank begins when it begins to meet the others, if it is known then which rank it is."""

from __future__ import annotations

import pytest

from whyidle.torch_hooks.machine import NOT_ENTERED
from whyidle.torch_hooks.session import Session

RANK_1_OF_2 = {"RANK": "1", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("env", "world", "rank", "wakes"),
    [
        (RANK_1_OF_2, -1, -1, True),
        (RANK_1_OF_2, 2, 1, True),
        (RANK_1_OF_2, 1, 0, False),  # the environment is that of a node, or of a batch script
        (RANK_1_OF_2, 16, 9, False),
        ({"RANK": "0", "WORLD_SIZE": "1"}, -1, -1, False),
        ({}, 2, 1, False),
        (
            RANK_1_OF_2 | {"RAY_JOB_ID": "01000000"},
            -1,
            -1,
            False,
        ),  # it trains in another thread
    ],
)
def test_wakes_if_it_is_known_which_rank_this_is(
    env: dict[str, str], world: int, rank: int, wakes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "RAY_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    session, woken = Session(), []
    session.asleep = True
    monkeypatch.setattr(session, "wake", lambda: woken.append(True))
    assert session.meeting_begins(world, rank) == NOT_ENTERED
    assert bool(woken) is wakes
