"""The last steps that a report keeps: waits are split step by step if the ranks' rings allow it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from whyidle.ledger.causes import CAUSE, CAUSES
from whyidle.ledger.layout import GROUP_LABELS, RING_CALLS, WORDS, Call
from whyidle.ledger.reader import Ledger, Step
from whyidle.verdict.recent import first_batch, recent

MS = 1_000_000
KEY = 77


def ledger(
    rank: int, waits: Sequence[Sequence[int]], *, size: int = 2, pairwise: bool = False, attempt: int = 0
) -> Ledger:
    """A rank that computes for 50 ms in each step, and waits in one group for this many ms in each call."""
    words = {name: (0,) * count for name, count in WORDS.items()}
    words |= {"rank": (rank,), "world_size": (size,), "steps": (len(waits),), "attempt": (attempt,)}
    words |= {"slot_key": (KEY, *[0] * 7), "slot_size": (size, *[0] * 7), "slot_pairwise": (int(pairwise), *[0] * 7)}
    found = Ledger("", False, False, dict.fromkeys(("run", "owner", *GROUP_LABELS), ""), words)
    for number, calls in enumerate(waits, 1):
        causes = [0] * len(CAUSES)
        causes[CAUSE["compute"]], causes[CAUSE["collective"]] = 50 * MS, sum(calls) * MS
        causes[CAUSE["data_read"]] = (1 + rank) * MS
        found.ring.append(Step(number, 0, sum(causes), tuple(causes)))
        found.calls += [Call(number, 0, call * MS) for call in calls]
    return found


EARLY = [[90, 1], [30, 1], [2, 40]]
LATE = [[10, 1], [10, 1], [1, 10]]


def families(*newest: Ledger) -> dict[str, list[float]]:
    found = recent(newest)
    assert found is not None
    series = found["families"]
    assert isinstance(series, dict)
    return {name: [round(1000 * value, 3) for value in values] for name, values in series.items()}


def test_waits_are_split_call_by_call_without_the_first_step() -> None:
    assert families(ledger(0, EARLY), ledger(1, LATE)) == {
        "compute": [50, 50],
        "storage": [1.5, 1.5],
        "network": [11, 11],
        "straggler": [10, 15.5],
    }


@pytest.mark.parametrize(
    ("newest", "family"),
    [
        ((ledger(0, EARLY),), "communication"),  # the other rank is on another node
        ((ledger(0, EARLY, pairwise=True), ledger(1, LATE, pairwise=True)), "pipeline"),
        ((ledger(0, EARLY), ledger(1, [[1], [41], [51]])), "communication"),  # they made different calls
    ],
)
def test_waits_that_cannot_be_split_are_marked(newest: tuple[Ledger, ...], family: str) -> None:
    found = families(*newest)
    assert set(found) == {"compute", "storage", family}
    assert found[family][0] == pytest.approx(
        sum(one.ring[1].causes[CAUSE["collective"]] for one in newest) / len(newest) / MS
    )


def test_waits_that_have_left_the_ring_of_calls_are_one_sum() -> None:
    newest = ledger(0, EARLY), ledger(1, LATE)
    for one in newest:
        one.words["calls_written"] = (RING_CALLS + 1,)
        one.calls = [call for call in one.calls if call.step == 3]
    assert families(*newest)["waited"] == [21, 26.5]


def test_ranks_of_different_attempts_have_no_steps_in_common() -> None:
    assert recent([ledger(0, EARLY), ledger(1, LATE, attempt=1)]) is None


def test_wait_for_the_first_batch_is_that_of_the_slowest_rank() -> None:
    newest = [ledger(0, EARLY), ledger(1, LATE)]
    assert first_batch(newest) == pytest.approx(0.002)
    newest[0].ring.pop(0)
    assert first_batch(newest) is None
