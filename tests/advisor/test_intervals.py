"""How often a run saves: from the steps with saves in the ledgers of its attempts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from whyidle.advisor.intervals import rhythm_of
from whyidle.ledger.causes import CAUSE, CAUSES
from whyidle.ledger.layout import CLEAN
from whyidle.ledger.reader import Ledger

KILLED = 0
RING = 512


def attempt(
    number: int, steps: int, saves: tuple[int, ...], *, base: int = 0, ended: int = KILLED, files: int = 1
) -> Ledger:
    """``saves``: after which steps of the attempt it saves."""

    def causes(step: int) -> list[int]:
        spent = [0] * len(CAUSES)
        if step - 1 in saves:  # a save after the step of the optimizer belongs to the next step
            spent[CAUSE["checkpoint_write"]], spent[CAUSE["checkpoint_cpu"]] = 300_000_000, 100_000_000
        return spent

    ring = [
        SimpleNamespace(number=base + step, causes=causes(step)) for step in range(max(1, steps - RING + 1), steps + 1)
    ]
    made: Any = SimpleNamespace(
        attempt=number,
        rank=0,
        ring=ring,
        ended=ended,
        has_returned=False,
        exited=0,
        base_step=base,
        steps=steps,
        saves=[SimpleNamespace(step=base + step) for step in saves for _ in range(files)][-16:],
        checkpoint_step=base + saves[-1] if saves else -1,
        words={"checkpoints": (files * len(saves), 0)},
    )
    return cast(Ledger, made)


@pytest.mark.parametrize(
    ("attempts", "steps"),
    [
        ([attempt(0, 120, (20, 40, 60, 80, 100))], 20),
        ([attempt(0, 120, (20, 40, 60, 80, 100), files=3)], 20),
        ([attempt(0, 150, (50, 100)), attempt(1, 90, (50,), base=100)], 50),
        ([attempt(0, 407, (200,)), attempt(1, 150, (), base=200), attempt(2, 310, (200,), base=200)], 200),
        ([attempt(0, 104, (50, 100, 103), ended=CLEAN)], 50),  # an export just before the end
        ([attempt(0, 100, (100,), ended=CLEAN)], None),  # only an export after the last step
        ([attempt(0, 30, (20, 30), ended=CLEAN)], 20),  # an export after a step in which none was due
        ([attempt(0, 50, (20, 40, 50), ended=CLEAN)], 20),
        ([attempt(0, 30, ())], None),
        ([attempt(0, 1900, (900, 1800))], 900),  # one save is no longer in the ring
        ([attempt(0, 220, (21,))], None),
        ([attempt(0, 220, (10, 31), ended=CLEAN)], None),
        ([attempt(0, 220, (21, 220), ended=CLEAN)], None),
        ([attempt(0, 39, (20,))], 20),
        ([attempt(0, 30, (20,)), attempt(1, 300, (), base=20)], None),
        ([attempt(0, 130, (60, 120)), attempt(1, 5, (), base=120)], 60),
        ([attempt(0, 399, (200,)), attempt(1, 190, (1,), base=200)], 200),
        ([], None),
    ],
    ids=[
        "regular",
        "files",
        "restarted",
        "killed early",
        "export",
        "only an export",
        "an export and one save",
        "an export and two saves",
        "none",
        "rare",
        "one at the start",
        "best ones at the start",
        "one at the start and an export",
        "killed before the second",
        "killed, and then none",
        "just begun",
        "one when it resumed",
        "no ledger",
    ],
)
def test_finds_the_steps_between_saves(attempts: list[Ledger], steps: float | None) -> None:
    found = rhythm_of(attempts)
    assert (None if found is None else found.steps) == steps
    if found is not None:
        assert (found.blocked, found.blocked_cpu) == pytest.approx((0.4, 0.1))
