"""Time outside the loop is in no window and in every sum: after the last step, between trainings, in a notebook."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from whyidle.advisor.goodput import goodput
from whyidle.cli.report import render_text
from whyidle.ledger.causes import PHASE
from whyidle.ledger.directory import read_directory, run_of
from whyidle.ledger.layout import SEQUENCE, WORD_AT
from whyidle.ledger.reader import Ledger
from whyidle.ledger.writer import LedgerWriter
from whyidle.torch_hooks.books import Books
from whyidle.verdict.accounts import account
from whyidle.verdict.report import build_report

MS = 1_000_000
STEPS = 60
AFTER = (("host", 4000), ("eval", 1500), ("data", 500))
"""An upload and a final test: (phase, ms)."""


def ledger(
    folder: Path,
    after: tuple[tuple[str, int], ...] = AFTER,
    *,
    during: tuple[tuple[str, int], ...] = (),
    failed: bool = False,
    interrupted: bool = False,
    closed: bool = True,
    held: bool = True,
) -> tuple[list[Ledger], LedgerWriter]:
    """A rank with 60 steps of 100 ms, and what it did after them. ``during``: what is in its step 31, too.
    A wait in a group of two ranks is kept for a split if it is ``held``."""
    strings = {"run": "r", "owner": "o", "node": "n", "device": "cpu", "uuid": ""}
    now = start = time.monotonic_ns() - 30_000 * MS
    numbers = {"rank": 0, "world_size": 1, "device_index": -1, "pid": os.getpid(), "pid_start_ticks": 1}
    writer = LedgerWriter(str(folder), strings, numbers | {"start_ns": start, "checkpoint_step": -1})
    words, books = writer.words, Books(writer.words)
    words[SEQUENCE] += 1
    words[WORD_AT["batches"][0]] = STEPS
    words[WORD_AT["slot_key"][0]], words[WORD_AT["slot_size"][0]] = 7, 2
    if held:
        books.hold(0, (), whole=True)
    books.charge(PHASE["startup"], 2000 * MS)
    now += 2000 * MS
    books.open_window(now)
    for step in range(1, STEPS + 1):
        for phase, ms in (*(during if step == 31 else ()), ("compute", 100)):
            books.charge(PHASE[phase], ms * MS)
            now += ms * MS
        books.close_step(now)
    for phase, ms in after:
        now += ms * MS
        if phase == "collective":
            books.charge_wait(0, ms * MS, end_ns=now)
        else:
            books.charge(PHASE[phase], ms * MS)
    words[WORD_AT["phase"][0]] = PHASE["host"]
    if closed:
        books.end()
    words[WORD_AT["phase_since_ns"][0]] = words[WORD_AT["accounted_ns"][0]] = now
    words[SEQUENCE] += 1
    if closed:
        writer.close(failed, interrupted)
    else:
        writer.file.flush()
    ledgers, problems = read_directory(str(folder), steps=True)
    assert not problems
    return ledgers, writer


def report(ledgers: list[Ledger]) -> dict[str, Any]:
    found: dict[str, Any] = build_report(run_of(ledgers[0]), ledgers, time.monotonic_ns())
    assert found["unaccounted_seconds"] == pytest.approx(0, abs=1e-6)
    assert sum(found["seconds"].values()) == pytest.approx(found["rank_seconds"])
    return found


def test_what_follows_the_last_step_is_shutdown(tmp_path: Path) -> None:
    ledgers, _ = ledger(tmp_path)
    found = report(ledgers)
    assert found["outside_seconds"] == {"shutdown": pytest.approx(6.0), "between": 0, "interactive": 0}
    assert (found["wall_seconds"], found["families"]["compute"]) == (pytest.approx(6.0), pytest.approx(1.0))
    assert found["verdict"]["family"] == "compute"
    assert "after its last step, rank 0 took 6.0 s to end: this is outside the loop" in found["remarks"]
    assert " · startup 2.0 s · shutdown 6.0 s" in render_text(found | {"advice": []}, colour=False)
    parts = goodput(run_of(ledgers[0]), ledgers, time.monotonic_ns())
    assert (parts.seconds["productive"], parts.seconds["shutdown"]) == (pytest.approx(6.0), pytest.approx(6.0))
    assert parts.all == pytest.approx(14.0)


@pytest.mark.parametrize(
    ("last", "kept"), [((("eval", 900),), 0.9), ((("eval", 900), ("eval", 4000)), 2.0), ((("host", 900),), 0.0)]
)
def test_the_last_one_of_regular_evaluations_is_part_of_the_loop_and_a_final_test_is_not(
    last: tuple[tuple[str, int], ...], kept: float, tmp_path: Path
) -> None:
    found = report(ledger(tmp_path, last, during=(("eval", 1000),))[0])
    assert found["seconds"]["evaluation"] == pytest.approx(1.0 + kept)
    assert found["outside_seconds"]["shutdown"] == pytest.approx(sum(ms for _, ms in last) / 1000 - kept)


@pytest.mark.parametrize(
    ("last", "kept"), [((("eval", 900), ("data", 400)), 0.4), ((("eval", 4000), ("data", 4000)), 1.0)]
)
def test_so_are_its_waits_for_batches(last: tuple[tuple[str, int], ...], kept: float, tmp_path: Path) -> None:
    ledgers, _ = ledger(tmp_path, last, during=(("eval", 1000), ("data", 500)))
    ledgers[0].words["eval_data_ns"] = (500 * MS + last[1][1] * MS,)
    found = report(ledgers)
    assert found["seconds"]["data_handoff"] == pytest.approx(0.5 + kept)
    assert found["outside_seconds"]["shutdown"] == pytest.approx(
        sum(ms for _, ms in last) / 1000 - kept - min(2.0, last[0][1] / 1000)
    )


def test_a_save_after_the_last_step_stays_a_save(tmp_path: Path) -> None:
    found = report(ledger(tmp_path, (("checkpoint", 3000), ("host", 1000)))[0])
    assert found["seconds"]["checkpoint_write"] == pytest.approx(3.0)
    assert found["outside_seconds"]["shutdown"] == pytest.approx(1.0)


def test_what_came_before_the_last_wait_for_others_stays_what_it_is(tmp_path: Path) -> None:
    found = report(ledger(tmp_path, (("host", 4000), ("collective", 10), ("host", 2000)))[0])
    assert (found["seconds"]["host"], found["outside_seconds"]["shutdown"]) == (pytest.approx(4.0), pytest.approx(2.0))
    assert found["seconds"]["collective"] == pytest.approx(0.01)


def test_nothing_is_concluded_if_it_is_not_known_when_the_waits_were(tmp_path: Path) -> None:
    found = report(ledger(tmp_path, (("host", 4000), ("collective", 100), ("host", 2000)), held=False)[0])
    assert (found["seconds"]["host"], found["outside_seconds"]["shutdown"]) == (pytest.approx(6.0), 0)


@pytest.mark.parametrize(("looked", "idle"), [(5, 1.5), (6, 1.5), (12, 3.0)])
def test_looks_stand_for_the_end_only_if_there_were_any(looked: int, idle: float, tmp_path: Path) -> None:
    """A quarter of them found a device without work. The loop took 6 s, and the end, too."""
    ledgers, _ = ledger(tmp_path)
    ns = looked * 1000 * MS
    ledgers[0].words |= {"looks": (120,), "empty_looks": (30,), "looked_ns": (ns,), "empty_ns": (ns // 4,)}
    [rank] = account(run_of(ledgers[0]), ledgers, time.monotonic_ns()).ranks
    assert (rank.wall, rank.empty) == (pytest.approx(6.0), pytest.approx(idle))


def test_what_ctrl_c_has_ended_may_have_hung(tmp_path: Path) -> None:
    """The usual answer to a hang: the wait after the last step is not its end."""
    ledgers, _ = ledger(tmp_path, (("data", 11000),), interrupted=True)
    found = report(ledgers)
    assert found["outside_seconds"]["shutdown"] == 0
    assert (found["state"], found["verdict"]["family"]) == ("ended", "host")
    assert "rank 0 was interrupted with Ctrl-C" in found["remarks"]
    parts = goodput(run_of(ledgers[0]), ledgers, time.monotonic_ns())
    assert parts.seconds["stalled"] == pytest.approx(10.9, abs=0.2)


def test_a_rank_that_failed_was_in_another_step(tmp_path: Path) -> None:
    found = report(ledger(tmp_path, failed=True)[0])
    assert found["outside_seconds"]["shutdown"] == 0


def test_a_rank_that_failed_after_a_long_wait_had_stalled(tmp_path: Path) -> None:
    """The time limit of a collective, for example."""
    ledgers, _ = ledger(tmp_path, (("collective", 15000),), failed=True)
    parts = goodput(run_of(ledgers[0]), ledgers, time.monotonic_ns())
    assert parts.seconds["stalled"] == pytest.approx(14.9, abs=0.2)


def test_of_a_live_rank_it_is_only_said_that_it_may_have_finished(tmp_path: Path) -> None:
    """The reader is the writer's own process, so the copy is parsed instead of the file."""
    from whyidle.ledger.reader import parse_ledger

    _, writer = ledger(tmp_path, (), closed=False)
    own = parse_ledger(writer.copy(), writer.path, alive=True)
    found = build_report(run_of(own), [own], own.last_sign_ns + 6_000 * MS)
    writer.close()
    remarks: Any = found["remarks"]
    assert remarks == [
        "rank 0 took its last step 6.0 s ago, much longer than any step took, and is in no phase that the hooks see:"
        " the training may have finished"
    ]
    assert found["outside_seconds"] == {"shutdown": 0, "between": 0, "interactive": 0}


@pytest.mark.parametrize("cause", ["between", "interactive"])
def test_time_between_trainings_and_cells_is_in_no_window(cause: str, tmp_path: Path) -> None:
    ledgers, _ = ledger(tmp_path, (), during=((cause, 12_000),))
    found = report(ledgers)
    assert found["outside_seconds"][cause] == pytest.approx(12.0)
    assert (found["wall_seconds"], found["families"]["host"]) == (pytest.approx(6.0), 0)
    assert any("12.0 s" in remark for remark in found["remarks"])
    assert found["per_rank"][0]["step_seconds"]["max"] == pytest.approx(0.1)
    parts = goodput(run_of(ledgers[0]), ledgers, time.monotonic_ns()).seconds
    assert (parts[cause], parts["productive"], parts["stalled"]) == (pytest.approx(12.0), pytest.approx(6.0), 0)


def test_a_notebook_that_waits_before_its_first_step_does_not_start_up(tmp_path: Path) -> None:
    ledgers, _ = ledger(tmp_path, ())
    one = ledgers[0]
    one.words["window_cause_ns"] = tuple(
        ns + (1500 * MS if place == list(one.cause_ns).index("interactive") else 0)
        for place, ns in enumerate(one.words["window_cause_ns"])
    )
    one.words["cause_ns"] = tuple(
        ns + (1500 * MS if place == list(one.cause_ns).index("interactive") else 0)
        for place, ns in enumerate(one.words["cause_ns"])
    )
    found = report([one])
    assert found["startup_seconds"] == pytest.approx(0.5)
    assert found["outside_seconds"]["interactive"] == pytest.approx(1.5)
