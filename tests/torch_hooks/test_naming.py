"""The name of the run and the rank, where the environment tells neither: real ranks that meet by `init_method`."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support_forks import Forked, Forks

from whyidle.ledger.directory import read_directory
from whyidle.ledger.reader import Ledger

STEPS = 40
"""They take long enough for the answer of the store: each has a barrier."""
FLUX = {"FLUX_JOB_ID": "ƒ2abc", "FLUX_JOB_SIZE": "2"}


def met(
    forks: Forks, folder: Path, each: Sequence[Mapping[str, str]], steps: int = STEPS
) -> tuple[list[Forked], list[list[Ledger]]]:
    """Runs ranks in one world, each with its own variables and folder -> the ranks, and the ledgers of each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started: list[Forked] = []
    try:
        for rank, env in enumerate(each):
            words = ("meets.py", str(port), str(rank), str(len(each)), str(steps))
            started.append(forks.start(words, folder / str(rank), env, recorded=False))
        codes = [one.wait() for one in started]
    finally:
        for one in started:
            one.kill()
    assert codes == [0] * len(each), [folder.joinpath(str(rank), "stderr").read_text() for rank in range(len(each))]
    return started, [read_directory(str(folder / str(rank) / "ledgers"))[0] for rank in range(len(each))]


def test_ranks_that_no_variable_names_are_one_run_with_the_name_of_rank_0(forks: Forks, tmp_path: Path) -> None:
    started, ledgers = met(forks, tmp_path, [{}, {}, {}])
    newest = [of_rank[-1] for of_rank in ledgers]
    assert [one.run for one in newest] == [f"meets-{started[0].pid}"] * 3
    assert [(one.rank, one.local_rank, one.world_size) for one in newest] == [(rank, rank, 3) for rank in range(3)]
    assert {(one.faults, one.attempt) for one in newest} == {(0, 0)}


def test_a_variable_names_the_run_and_the_process_group_tells_the_rank(forks: Forks, tmp_path: Path) -> None:
    """The program has given the ranks in another order than the launcher."""
    each = [{**FLUX, "FLUX_TASK_RANK": str(1 - rank), "FLUX_TASK_LOCAL_ID": str(1 - rank)} for rank in range(2)]
    _, ledgers = met(forks, tmp_path, each)
    assert [(one.run, one.rank, one.local_rank) for [one] in ledgers] == [("ƒ2abc", 0, 1), ("ƒ2abc", 1, 0)]


def test_a_rank_keeps_its_name_if_rank_0_is_not_recorded(forks: Forks, tmp_path: Path) -> None:
    started, ledgers = met(forks, tmp_path, [{"WHYIDLE": "0"}, {}])
    [alone] = ledgers[1]
    assert (alone.run, alone.rank, alone.faults) == (f"meets-{started[1].pid}", 1, 0)


def test_a_rank_that_a_process_group_tells_continues_its_own_attempts(forks: Forks, tmp_path: Path) -> None:
    """Each rank has its own node. No variable tells rank 1 that it is not rank 0."""
    for attempt in range(2):
        _, ledgers = met(forks, tmp_path, [{"WHYIDLE_RUN": "mine"}] * 2)
        assert [[(one.rank, one.attempt) for one in of_rank] for of_rank in ledgers] == [
            [(rank, each) for each in range(attempt + 1)] for rank in range(2)
        ]


@pytest.mark.parametrize("steps", [0, 1])
def test_a_rank_that_ends_at_once_ends_well(steps: int, forks: Forks, tmp_path: Path) -> None:
    _, ledgers = met(forks, tmp_path, [{}, {}], steps)
    assert [one.faults for [one] in ledgers] == [0, 0]
