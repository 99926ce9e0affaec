"""Waits that the ranks had no time to exchange: the report splits them from the ledgers of all ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from whyidle.ledger.causes import PHASE
from whyidle.ledger.directory import read_directory, run_of
from whyidle.ledger.layout import SEQUENCE, WORD_AT
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks.books import Books
from whyidle.verdict.accounts import RankAccount, account
from whyidle.verdict.verdict import verdict

MS = 1_000_000
STEPS = 10


class After(NamedTuple):
    """What a rank does after its last step, in ms."""

    saves: int = 0
    waits: float | None = None
    """A barrier after the save; None: it makes no such call."""
    then: int = 0
    """The loop's own code, after the barrier."""


def rank(
    folder: Path, number: int, of: int, after: After, settled: int, steps: int = STEPS, compute: int | None = None
) -> None:
    """Steps of 100 ms with a wait of 10 ms each, then what comes after them. Waits up to step ``settled`` are split.

    ``compute``: the ms that each step computes instead, without a wait.
    """
    strings = {"run": "r", "owner": "o", "node": "n", "device": "cpu", "uuid": ""}
    start = time.monotonic_ns() - 1000 * 1000 * MS
    numbers = {"rank": number, "world_size": of, "local_rank": number, "device_index": -1, "pid": os.getpid()}
    writer = LedgerWriter(
        str(folder), strings, numbers | {"pid_start_ticks": 1, "start_ns": start, "checkpoint_step": -1}
    )
    words, books = writer.words, Books(writer.words)
    words[SEQUENCE] += 1
    words[WORD_AT["slot_key"][0]], words[WORD_AT["slot_size"][0]] = 7, of
    books.hold(0, (), whole=True)
    now = start
    books.open_window(now)
    for step in range(1, steps + 1):
        books.charge(PHASE["compute"], (compute or 90) * MS)
        now += (compute or 100) * MS
        if compute is None:
            books.charge_wait(0, 10 * MS, end_ns=now)
        books.close_step(now)
        if step == settled:
            books.settle(0, {"network": step * 10 * MS}, step)
    books.charge(PHASE["checkpoint"], after.saves * MS)
    now += after.saves * MS
    if after.waits is not None:
        waited = int(after.waits * MS)
        now += waited
        books.charge_wait(0, waited, end_ns=now)
    books.charge(PHASE["host"], after.then * MS)
    books.end()
    words[WORD_AT["phase_since_ns"][0]] = words[WORD_AT["accounted_ns"][0]] = now + after.then * MS
    words[SEQUENCE] += 1
    writer.close()


def ranks(folder: Path, after: Sequence[After], settled: int = STEPS) -> list[RankAccount]:
    for number, one in enumerate(after):
        rank(folder, number, len(after), one, settled)
    return read(folder)


def read(folder: Path) -> list[RankAccount]:
    ledgers, problems = read_directory(str(folder), steps=True)
    assert not problems
    return account(run_of(ledgers[0]), ledgers, time.monotonic_ns()).ranks


SAVED = [After(saves=5000, waits=10), After(waits=5010)]
"""Rank 0 saves the model, and the other one waits for it in a barrier."""


@pytest.mark.parametrize("settled", [STEPS, STEPS - 3])
def test_waits_after_the_last_step_are_split(settled: int, tmp_path: Path) -> None:
    saver, other = ranks(tmp_path, SAVED, settled)
    assert [saver.seconds["collective"], other.seconds["collective"]] == pytest.approx([0, 0])
    assert saver.seconds["network"] == other.seconds["network"] == pytest.approx(0.11)
    assert (saver.seconds["straggler"], other.seconds["straggler"]) == (0, pytest.approx(5.0))
    [group] = saver.groups.values()
    assert group.late_own == {"storage": pytest.approx(5.0)}


def test_waits_after_the_last_step_count_under_what_made_the_rank_late(tmp_path: Path) -> None:
    ranks(tmp_path, SAVED)
    ledgers, _ = read_directory(str(tmp_path), steps=True)
    found = verdict(account(run_of(ledgers[0]), ledgers, time.monotonic_ns()))
    assert found is not None
    assert (found["family"], found["summary"]) == (
        "storage",
        "rank 0 is late: saves block the loop, after the last step",
    )


def test_the_reason_is_unknown_if_what_came_after_the_wait_may_have_taken_the_time(tmp_path: Path) -> None:
    saver, other = ranks(tmp_path, [After(saves=5000, waits=10, then=3000), After(waits=5010)])
    assert (saver.seconds["straggler"], other.seconds["straggler"]) == (0, pytest.approx(5.0))
    [group] = saver.groups.values()
    assert (group.late_own, group.late_unexplained) == ({}, pytest.approx(5.0))


def test_early_ranks_wait_at_the_end_for_those_that_take_longer_for_their_steps(tmp_path: Path) -> None:
    """The ranks have not met before: two of four take half as long for a step, and wait in a barrier for the others."""
    for number, (compute, waits) in enumerate([(100, 1000), (100, 1000), (200, 0.5), (200, 0.6)]):
        rank(tmp_path, number, 4, After(waits=waits), 0, compute=compute)
    found = read(tmp_path)
    assert [one.seconds["straggler"] for one in found] == pytest.approx([0.9995, 0.9995, 0, 0.0001], abs=1e-3)
    late = found[2].groups[7].late_own
    assert late == {"compute": pytest.approx(0.9995, abs=1e-3)}


@pytest.mark.parametrize(
    "after",
    [
        [After(saves=5000, waits=10), After(waits=None)],
        [After(saves=5000, waits=None), After(waits=None)],
    ],
    ids=["a rank has made no such call", "there are none"],
)
def test_waits_that_cannot_be_attributed_stay_unsplit(after: Sequence[After], tmp_path: Path) -> None:
    found = ranks(tmp_path, after)
    assert [one.seconds["collective"] for one in found] == [(one.waits or 0) / 1000 for one in after]
    assert [one.seconds["network"] for one in found] == pytest.approx([0.1, 0.1])


def test_ranks_that_ended_in_different_steps_are_split_up_to_the_first_of_them(tmp_path: Path) -> None:
    rank(tmp_path, 0, 2, After(waits=2000), STEPS - 3)
    rank(tmp_path, 1, 2, After(), STEPS - 3, steps=STEPS - 1)
    first, second = read(tmp_path)
    assert first.seconds["collective"] == pytest.approx(2.01)  # the last step and what came after it
    assert second.seconds["collective"] == 0
    assert second.seconds["network"] == pytest.approx(0.09)


@pytest.mark.parametrize("noise", [(0, 0, 0), (1, 4, 5), (4, 0, 5)])
def test_of_ranks_that_hid_a_collective_the_one_with_most_own_time_is_late(
    noise: tuple[float, ...], tmp_path: Path
) -> None:
    """Rank 0 waits for 5 ms, and the others for 0 to 5 µs. Rank 3 had saved longest."""
    others = [After(saves=saves, waits=us / 1000) for saves, us in zip((65, 65, 70), noise, strict=True)]
    first, *_, last = ranks(tmp_path, [After(saves=60, waits=5), *others])
    [group] = first.groups.values()
    assert group.behind == {3: pytest.approx(0.005, abs=1e-5)}
    assert [*last.late] == ["storage"]
