"""When a report says that the loop's own code reads files: only where that may be what the loop waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from whyidle.ledger.below import BELOW, BELOW_LABELS, BLOCKERS
from whyidle.verdict.accounts import Place, RankAccount, RunAccount
from whyidle.verdict.own_files import reads_by_hand, sentences

WALL, STEPS = 100.0, 1000


def rank(
    device: str = "cpu",
    batches: int = 0,
    marked: int = 0,
    gaps: float | None = None,
    number: int = 0,
    looks: int = 0,
    at_mount: float = 0.0,
    **seconds: float,
) -> Any:
    newest = SimpleNamespace(
        rank=number,
        device=device,
        batches=batches,
        marked_data=marked,
        steps=STEPS,
        words={"mount_looks_all": (looks,)},
    )
    found = RankAccount(cast(Any, newest), steps=STEPS, wall=WALL, gaps=gaps)
    found.seconds |= {"compute": 50.0, "host": 0.0, "host_blocked": 50.0} | seconds
    found.thread_read_bytes = 50 << 20
    found.mounts = [("n1", cast(Any, SimpleNamespace(own_ns=int(at_mount * 1e9))))]
    return found


@pytest.mark.parametrize(
    ("found", "reads"),
    [
        (rank(), True),
        (rank(host_blocked=0.5), False),
        (rank(host_blocked=1.0), True),
        (rank(batches=100), True),  # of an evaluation
        (rank(batches=101), False),  # a loader that the hooks see
        (rank(marked=1000), False),
        (rank(looks=4), True),
        (rank(looks=5), False),
        (rank(looks=9, at_mount=1.0), True),
        (rank(looks=10), False),  # something else blocks it
        (rank(looks=90, at_mount=2.0), False),
        (rank(looks=90, at_mount=3.0), True),
        (rank("cuda:0", host_blocked=0.0), True),
        (rank("cuda:0", host_blocked=0.0, gaps=40.0), True),
        (rank("cuda:0", host_blocked=0.0, gaps=0.5), False),  # the GPU is not idle
    ],
)
def test_reads_by_hand(found: RankAccount, reads: bool) -> None:
    assert reads_by_hand(found) == reads


@pytest.mark.parametrize(
    ("below", "looks", "reads"),
    [
        ("sac.py:8 _on_step", 3, False),
        ("sac.py:8 _on_step", 2, True),
        ("train.py:8 _on_step", 3, True),
        ("", 0, True),
    ],
)
def test_a_callback_that_sleeps_does_not_read(below: str, looks: int, reads: bool) -> None:
    found = rank()
    found.places = {"blocked": (Place("sac.py", 10, "_on_step", ""), 9, 9)}
    found.newest.words |= {f"{kind}_blocked_on": (0,) * len(BLOCKERS) for kind in BELOW}
    found.newest.words["logging_blocked_on"] = tuple(looks * (one == "a sleep") for one in BLOCKERS)
    found.newest.strings = dict.fromkeys(BELOW_LABELS, "") | {"logging_below": below}
    assert reads_by_hand(found) == reads


def test_a_few_bytes_and_faults_are_not_mentioned() -> None:
    found = rank()
    found.thread_read_bytes, found.thread_major_faults = 12 << 20, 999
    assert not [*sentences(RunAccount("r", [found], []))]
    found.thread_major_faults = 1000
    [sentence] = sentences(RunAccount("r", [found], []))
    assert sentence == (
        "rank 0: the loop's own code had 1000 page faults that had to wait for a read (memory-mapped files, or "
        "swapped memory). "
        'If these are batches, make them in `with whyidle.phase("data")`. Then waits for reads count as storage'
    )


def test_ranks_that_read_are_named_together() -> None:
    ranks = [rank(number=0), rank(number=1), rank(number=2, host_blocked=0.0)]
    ranks[0].thread_major_faults = ranks[1].thread_major_faults = 2000
    [sentence] = sentences(RunAccount("r", ranks, []))
    assert sentence.startswith("ranks 0 and 1: the loop's own code read 104.9 MB from files and had 4000 page faults")


def test_what_whyidle_reads_itself_is_not_the_loop_s() -> None:
    found = rank(host_blocked=1.0)
    found.thread_read_bytes = 4 << 20  # 40 kB/s
    assert not reads_by_hand(found)


def test_ranks_that_read_in_different_ways() -> None:
    calls, mapped = rank(host_blocked=1.0), rank(number=1)
    mapped.thread_read_bytes, mapped.thread_major_faults = 0, 1000
    [sentence] = sentences(RunAccount("r", [calls, mapped], []))
    assert "read 52.4 MB from files and had 1000 page faults" in sentence
