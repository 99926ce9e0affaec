"""What reports say of ranks that were killed because memory ran out, and of exceptions that ended ranks."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from support_ledgers import SECOND, Spec, children, ended

from whyidle.advisor.advice.case import case_of
from whyidle.advisor.advice.table import advise
from whyidle.ledger.deaths import OomKill
from whyidle.ledger.directory import read_directory, run_of
from whyidle.ledger.given import TRAIL
from whyidle.ledger.reader import Ledger, read_ledger
from whyidle.verdict.ends import end_sentences
from whyidle.verdict.enough import NO_LIMITS
from whyidle.verdict.out_of_memory import evidence, growth, size
from whyidle.verdict.report import build_report

MIB, GIB = 1 << 20, 1 << 30
GROUP = {"memory_of": 2, "memory_at_ns": 1, "memory_limit_bytes": 900 * MIB, "memory_used_bytes": 891 * MIB}
LOG = OomKill("log", True, 900 * MIB)
REACHED = "its control group reached its limit of 900 MiB"


def one(
    folder: Path, oom: OomKill | None = None, words: dict[str, int] | None = None, end: str = "killed", rank: int = 0
) -> Ledger:
    all_words = GROUP | {"memory_at_ns": time.monotonic_ns()} | (words or {})
    spec = Spec(rank=rank, words=all_words, failed=end == "failed")
    if end == "killed":
        with children(folder, spec) as [child]:
            child.kill()
            path = child.path
    else:
        [path] = ended(folder, spec)
    ledger = read_ledger(path)
    ledger.oom = oom
    return ledger


@pytest.mark.parametrize(
    ("oom", "words", "sentence"),
    [
        (LOG, {}, f"rank 0 was killed by the kernel: {REACHED}"),
        (
            replace(LOG, limit=64 * GIB),
            {"memory_used_bytes": 63 * GIB},
            "rank 0 was killed by the kernel: its control group reached its limit of 64 GiB",
        ),
        (
            LOG,
            {"memory_of": 3},
            "rank 0 was killed by the kernel: a control group above its own reached its limit of 900 MiB",
        ),
        (OomKill("log", True, 0, True), {}, "rank 0 was killed by the kernel: the memory of the node ran out"),
        (
            OomKill("count", False),
            {},
            f"rank 0 was killed when the kernel killed processes of its control group: {REACHED}",
        ),
        (
            OomKill("count", False),
            {"memory_of": 1},
            "rank 0 was killed when the kernel killed processes of its control group: memory ran out",
        ),
        (
            None,
            {},
            "rank 0 was killed, or crashed: its control group was at 99 % of its limit of 900 MiB at its last look",
        ),
        (
            None,
            {"memory_of": 1, "memory_limit_bytes": 1024 * GIB, "memory_used_bytes": 1000 * GIB},
            "rank 0 was killed, or crashed: the memory of its node was at 98 % of 1024 GiB at its last look",
        ),
        (None, {"memory_used_bytes": 800 * MIB}, "rank 0 was killed, or crashed"),
        (None, {"memory_limit_bytes": 0}, "rank 0 was killed, or crashed"),
    ],
)
def test_the_reason_of_the_end(oom: OomKill | None, words: dict[str, int], sentence: str, tmp_path: Path) -> None:
    assert end_sentences([one(tmp_path, oom, words)]) == [sentence]


@pytest.mark.parametrize("end", ["ended", "failed"])
def test_a_rank_that_ended_itself_was_not_killed_for_memory(end: str, tmp_path: Path) -> None:
    assert evidence(one(tmp_path, end=end)) == ""


def test_the_others_were_killed_by_the_launcher(tmp_path: Path) -> None:
    calm = {"memory_used_bytes": 100 * MIB}
    first = one(tmp_path / "0", LOG, calm)
    other = one(tmp_path / "1", OomKill("log", False, 900 * MIB, False, ("python (pid 7)",)), calm, rank=1)
    said = end_sentences([first, other])
    assert f"rank 0 was killed by the kernel: {REACHED}" in said
    assert "rank 1 was then killed (by the launcher, it seems)" in said


def test_a_worker_that_the_kernel_killed_is_named(tmp_path: Path) -> None:
    words = {"dead_worker_pid": 7, "dead_worker_signal": int(signal.SIGKILL), "oom_kills_before": 3, "oom_kills": 4}
    [_, said] = end_sentences(
        [one(tmp_path, OomKill("log", False, 900 * MIB, False, ("pt (pid 7)",)), words, "failed")]
    )
    assert said == f"data worker 7 of rank 0 was killed by the kernel: {REACHED}"


def test_how_memory_grew_before_a_worker_was_killed_is_said(tmp_path: Path) -> None:
    words = {"dead_worker_pid": 7, "dead_worker_signal": int(signal.SIGKILL), "oom_kills_before": 3, "oom_kills": 4}
    ledger = one(tmp_path, LOG, words, "failed")
    ledger.words["memory_trail_bytes"] = (300 * MIB, 500 * MIB, 700 * MIB, *[0] * (TRAIL - 3))
    seen = ledger.memory_at_ns - ledger.start_ns
    ledger.words["memory_trail_ns"] = (seen // 4, seen // 2, seen * 3 // 4, *[0] * (TRAIL - 3))
    assert "rank 0, with its data workers: its memory grew from 300 MiB" in end_sentences([ledger])[-1]


def test_another_process_of_the_group_is_named_while_the_rank_lives(tmp_path: Path) -> None:
    with children(tmp_path, Spec(words=GROUP | {"memory_at_ns": time.monotonic_ns()})) as [child]:
        ledger = read_ledger(child.path)
        ledger.oom = OomKill("log", False, 900 * MIB, False, ("tensorboard (pid 7)",))
        assert end_sentences([ledger]) == [
            f"the kernel killed tensorboard (pid 7) in the control group of rank 0: {REACHED}"
        ]


def grew(folder: Path, oom: OomKill | None, *mib: int, every: float = 60.0, last: int = 891) -> str:
    ledger = one(folder, oom, {"memory_used_bytes": last * MIB})
    zeros = [0] * (TRAIL - len(mib))
    begun = ledger.memory_at_ns - ledger.start_ns - round(every * len(mib) * SECOND)
    ledger.words["memory_trail_bytes"] = (*(number * MIB for number in mib), *zeros)
    ledger.words["memory_trail_ns"] = (*(begun + round(n * every * SECOND) for n in range(len(mib))), *zeros)
    ledger.words["start_ns"] = (ledger.start_ns + begun - SECOND,)
    ledger.words["memory_trail_ns"] = tuple(ns - begun + SECOND if ns else 0 for ns in ledger.words["memory_trail_ns"])
    return growth(ledger)


def test_steady_growth_is_called_so(tmp_path: Path) -> None:
    said = grew(tmp_path, LOG, 300, 400, 500, 600, 700, 800)
    assert said == (
        "its memory grew from 300 MiB to 891 MiB in 6 min, step by step: does it keep what it no longer needs?"
    )


def test_fast_steady_growth_needs_no_large_allocation(tmp_path: Path) -> None:
    """The last look is up to two seconds before the end."""
    assert "step by step" in grew(tmp_path, LOG, 250, 400, 510, every=1.0, last=690)


def test_a_jump_that_a_look_saw(tmp_path: Path) -> None:
    said = grew(tmp_path, LOG, 300, 310, 300, 310, every=1.0)
    assert said == "its memory rose from 310 MiB to 891 MiB within 1 s: a large allocation, or several"


def test_a_jump_that_no_look_saw(tmp_path: Path) -> None:
    said = grew(tmp_path, LOG, 300, 310, 300, 310, every=1.0, last=310)
    assert said == "it used 310 MiB at its last look, so the rest came within 2 s: a large allocation, or several"


@pytest.mark.parametrize("seen", [(), (880, 885, 880, 890)])
def test_memory_that_was_as_full_all_the_time(seen: tuple[int, ...], tmp_path: Path) -> None:
    assert grew(tmp_path, LOG, *seen) == ""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "torch.OutOfMemoryError gpu-memory train.py:31 step",
            ": torch.OutOfMemoryError at train.py:31 step (the memory of the GPU was full)",
        ),
        ("ValueError - -", ": ValueError"),
        ("", ""),
        ("nonsense", ""),
    ],
)
def test_the_exception_is_the_reason_of_an_error(text: str, sentence: str, tmp_path: Path) -> None:
    ledger = one(tmp_path, end="failed")
    ledger.strings["failure"] = text
    assert end_sentences([ledger]) == [f"rank 0 ended with an error{sentence}"]


def test_a_full_dev_shm_is_named_with_its_size(tmp_path: Path) -> None:
    ledger = one(tmp_path, None, {"shm_bytes": 64 * MIB}, "failed")
    ledger.strings["failure"] = "RuntimeError shm train.py:9 main"
    [said] = end_sentences([ledger])
    assert "RuntimeError at train.py:9 main (/dev/shm of 64 MiB was full: `docker run --shm-size`" in said


def test_advice_after_it_does_not_need_memory(tmp_path: Path) -> None:
    def advised(used: int, failure: str = "", more: dict[str, int] | None = None) -> set[str]:
        step: dict[str, Any] = {"compute": 0.05, "data_cpu": 0.05, "host_blocked": 0.05}
        words = (
            GROUP | {"memory_used_bytes": used * MIB, "memory_at_ns": time.monotonic_ns(), "batches": 99} | (more or {})
        )
        with children(tmp_path / str(used), Spec(steps=99, step=step, words=words, world_size=1)) as [child]:
            child.kill()
            ledger = read_ledger(child.path, steps=True)
        ledger.strings["failure"] = failure
        return {one.id for one in advise(case_of(run_of(ledger), [ledger], time.monotonic_ns(), least=NO_LIMITS))}

    assert "host.blocked" in advised(100)
    killed = {"dead_worker_pid": 7, "dead_worker_signal": int(signal.SIGKILL), "oom_kills_before": 1, "oom_kills": 2}
    assert "host.blocked" in advised(102, more=killed | {"oom_kills": 1})
    for full in (
        advised(891),
        advised(101, "RuntimeError memory train.py:9 main"),
        advised(103, "RuntimeError - train.py:9 main", killed),
    ):
        assert not any(name.startswith("data.") or name == "host.blocked" for name in full)


@pytest.mark.parametrize(
    ("number", "text"),
    [(900 * MIB, "900 MiB"), (64 * GIB, "64 GiB"), (1536 * MIB, "1536 MiB"), (11 * GIB + 1, "11.0 GiB")],
)
def test_sizes_are_written_as_limits_are_set(number: int, text: str) -> None:
    assert size(number) == text


def test_the_report_names_the_rank_that_was_killed_in_the_attempt_before(tmp_path: Path) -> None:
    killed = one(tmp_path, LOG, rank=1)
    ended(tmp_path, Spec(rank=1, attempt=1, steps=5, step={"compute": 0.1}, failed=True))
    ledgers = [each for each in read_directory(str(tmp_path), steps=True)[0] if each.attempt] + [killed]
    said = build_report(run_of(killed), ledgers, time.monotonic_ns())["problems"]
    assert f"attempt 0: rank 1 was killed by the kernel: {REACHED}" in cast(list[str], said)
    assert not any("attempt 0" in each for each in end_sentences([killed]))


def test_a_rank_that_was_killed_is_named_once_if_the_next_attempt_goes_on_without_it(tmp_path: Path) -> None:
    killed = one(tmp_path, LOG, rank=1)
    ended(tmp_path, Spec(rank=0, attempt=1, world_size=1, steps=5, step={"compute": 0.1}))
    ledgers = [each for each in read_directory(str(tmp_path), steps=True)[0] if each.attempt] + [killed]
    said = cast(list[str], build_report(run_of(killed), ledgers, time.monotonic_ns())["problems"])
    assert [each for each in said if "killed" in each] == [f"rank 1 was killed by the kernel: {REACHED}"]
