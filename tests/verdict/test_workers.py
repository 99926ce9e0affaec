"""What a report says of data workers: a table of what was counted -> the words."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support_ledgers import Spec, children, ended

from whyidle.ledger.directory import read_directory, run_of
from whyidle.ledger.doing import DOING
from whyidle.verdict import workers
from whyidle.verdict.accounts import RunAccount, account
from whyidle.verdict.report import build_report

STEPS = 100
LOOKS = dict.fromkeys(DOING, 0)


def account_of(folder: Path, words: dict[str, int], loader_workers: int = 2, **looks: int) -> RunAccount:
    spec = Spec(world_size=1, steps=STEPS, step={"compute": 0.05, "data_read": 0.05}, workers=loader_workers)
    ended(folder, replace(spec, words={"batches": STEPS, "samples": 16 * STEPS, **words}))
    ledgers, _ = read_directory(str(folder), steps=True)
    found = account(run_of(ledgers[0]), ledgers, time.monotonic_ns())
    found.ranks[0].worker_looks = LOOKS | looks
    return found


@pytest.mark.parametrize(
    ("words", "loader_workers", "looks", "reason"),
    [
        ({}, 2, {}, workers.BLOCKED),
        ({"worker_read_calls": 18 * STEPS, "worker_read_bytes": 540 * STEPS}, 2, {}, workers.NO_READS),
        ({"worker_read_calls": 20 * STEPS, "worker_read_bytes": 9000 * STEPS}, 2, {}, workers.ON_READS),
        ({"worker_read_calls": 20, "worker_read_bytes": 700_000}, 2, {}, workers.NO_READS),  # modules were imported
        ({"worker_read_calls": STEPS, "worker_disk_bytes": 1 << 30}, 2, {}, workers.ON_READS),  # a mapped file
        ({"worker_read_calls": STEPS}, 2, {"read": 15, "running": 15}, workers.ON_READS),
        ({"worker_read_calls": STEPS}, 2, {"lock": 15, "sleep": 15}, workers.ON_LOCK),
        ({"worker_read_calls": STEPS}, 2, {"lock": 3, "sleep": 3}, workers.NO_READS),  # too few looks
        ({}, 0, {}, workers.OWN_BLOCKED),
        ({"thread_read_bytes": 4000 * STEPS}, 0, {}, workers.OWN_BLOCKED),  # whyidle's own meters read as much
        ({"thread_read_bytes": 9000 * STEPS}, 0, {}, workers.OWN_BLOCKED),  # modules were imported
        ({"thread_read_bytes": 9000 * STEPS + (16 << 20)}, 0, {}, f"{workers.OWN_BLOCKED}: it reads files"),
        ({"marked_data": STEPS}, -1, {}, workers.OWN_BLOCKED),
        ({"data_awaited_ns": 50_000_000 * STEPS}, -1, {}, workers.MAKERS_BLOCKED),
    ],
)
def test_blocked_on_reads_is_said_only_if_reads_were_seen(
    words: dict[str, int], loader_workers: int, looks: dict[str, int], reason: str, tmp_path: Path
) -> None:
    assert workers.reason(account_of(tmp_path, words, loader_workers, **looks).ranks) == reason


@pytest.mark.parametrize("cause", ["data_cpu", "data_queue"])
def test_no_data_workers_are_named_where_the_loop_makes_its_own_batches(cause: str, tmp_path: Path) -> None:
    for count in (0, 2):
        folder = tmp_path / str(count)
        folder.mkdir()
        ended(folder, Spec(world_size=1, steps=STEPS, step={"compute": 0.05, cause: 0.05}, workers=count))
        ledgers, _ = read_directory(str(folder), steps=True)
        verdict: Any = build_report(run_of(ledgers[0]), ledgers, time.monotonic_ns())["verdict"]
        assert ("data workers" in verdict["summary"]) == (count > 0)


def test_a_wait_for_a_worker_that_is_gone_is_said_to_be_one(tmp_path: Path) -> None:
    spec = Spec(world_size=1, steps=STEPS, step={"compute": 0.05, "unattributed": 0.05})
    ended(tmp_path, replace(spec, words={"data_gone_ns": 5_000_000_000}))
    ledgers, _ = read_directory(str(tmp_path), steps=True)
    verdict: Any = build_report(run_of(ledgers[0]), ledgers, time.monotonic_ns())["verdict"]
    assert verdict["summary"] == workers.GONE
    assert any("whose worker is gone" in each for each in verdict["evidence"])


@pytest.mark.parametrize(("skips", "said"), [(1, True), (2, True), (90, False)])
def test_a_loop_that_needs_many_batches_for_each_step_skips_nothing(skips: int, said: bool, tmp_path: Path) -> None:
    words = {"skipped_batches": 2000, "skipped_ns": 3_000_000_000, "skips": skips}
    sentences = [*workers.sentences(account_of(tmp_path, words))]
    assert any("2000 batches without computing on them, in 3.0 s" in each for each in sentences) == said


@pytest.mark.parametrize(
    ("alive", "doing", "sentence"),
    [
        (True, {0: "sleep"}, "rank 0 has been waiting 8.5 s for a batch from worker 4711, which sleeps"),
        (True, {0: "gone"}, "rank 0 has been waiting 8.5 s for a batch from worker 4711, which is gone"),
        (True, {}, "rank 0 has been waiting 8.5 s for a batch from worker 4711"),
    ],
)
def test_an_open_wait_names_the_worker_that_owes_the_batch(
    alive: bool, doing: dict[int, str], sentence: str, tmp_path: Path
) -> None:
    spec = Spec(
        world_size=1,
        steps=20,
        step={"compute": 0.1},
        phase="data",
        idle=8.5,
        words={"open_worker_pid": 4711},
    )
    with children(tmp_path, spec):
        ledgers, _ = read_directory(str(tmp_path), steps=True)
        now = ledgers[0].phase_since_ns + 8_500_000_000
        report = build_report(run_of(ledgers[0]), ledgers, now, doing=doing)
    [wait] = report["open"]  # type: ignore[misc]
    assert wait["sentence"] == sentence
    assert (wait["rank"], wait["pid"], wait["alive"]) == (0, 4711, alive)
    assert report["verdict"]["summary"] == "the loop waits for a batch that has not come"  # type: ignore[index]
    evidence = report["verdict"]["evidence"]  # type: ignore[index]
    assert "the rank: 8.5 s waiting for a batch that has not come (unattributed)" in evidence


@pytest.mark.parametrize(("gone", "named", "said"), [(0.0, 9.0, ""), (0.0, 6.0, "mostly "), (4.0, 6.0, "mostly ")])
def test_what_is_only_a_part_of_unexplained_time_is_said_to_be_most_of_it(gone: float, named: float, said: str) -> None:
    rank: Any = SimpleNamespace(seconds={"unattributed": 10.0}, data_gone=gone, open_data=named)
    assert workers.words_of([rank], "unattributed") == f"{said}waiting for a batch that has not come"
