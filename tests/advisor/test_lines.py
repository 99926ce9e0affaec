"""Which steps a branch has left, for attempts that crash, return, branch and go back to the first line."""

from __future__ import annotations

import pytest

from whyidle.advisor.lines import Stretch, branched_off


def stretch(number: int, base: int, steps: int, parent: int = -1, beginning: str = "", repeated: int = 0) -> Stretch:
    return Stretch(number, base, steps, repeated, parent, beginning)


@pytest.mark.parametrize(
    ("attempts", "left"),
    [
        ([stretch(0, 0, 500)], [0]),
        ([stretch(0, 0, 500), stretch(1, 400, 200, 0, "continued", 100)], [0, 0]),
        ([stretch(0, 0, 500), stretch(1, 100, 600, 0, "returned", 400)], [0, 0]),
        ([stretch(0, 0, 500), stretch(1, 100, 50, 0, "branched")], [400, 0]),
        # The branch has crashed, and goes on.
        (
            [stretch(0, 0, 500), stretch(1, 100, 50, 0, "branched"), stretch(2, 140, 60, 1, "continued", 10)],
            [400, 0, 0],
        ),
        # A branch from before a crash: the second attempt leads nowhere, but what it repeated is lost already.
        (
            [stretch(0, 0, 500), stretch(1, 400, 300, 0, "continued", 100), stretch(2, 100, 50, 0, "branched")],
            [400, 200, 0],
        ),
        # Two branches from one checkpoint.
        (
            [stretch(0, 0, 500), stretch(1, 100, 50, 0, "branched"), stretch(2, 100, 30, 0, "branched")],
            [400, 50, 0],
        ),
        # Back to the first line: its steps lead on again.
        (
            [stretch(0, 0, 500), stretch(1, 100, 50, 0, "branched"), stretch(2, 500, 30, 0, "branched")],
            [0, 50, 0],
        ),
        # A return, and then a branch: what the return has repeated leads on.
        (
            [stretch(0, 0, 500), stretch(1, 100, 600, 0, "returned", 400), stretch(2, 600, 9, 1, "branched")],
            [0, 100, 0],
        ),
        # A crash before the first save of an attempt.
        (
            [
                stretch(0, 0, 500),
                stretch(1, 400, 300, 0, "continued", 100),
                stretch(2, 400, 400, 0, "continued", 300),
                stretch(3, 100, 9, 0, "branched"),
            ],
            [400, 200, 100, 0],
        ),
        # It is not known who has saved what was restored: the attempt before.
        ([stretch(3, 900, 100), stretch(4, 950, 10, 2, "branched")], [50, 0]),
        ([stretch(0, 0, 10), stretch(1, 5, 10, 1, "branched")], [5, 0]),
    ],
)
def test_steps_after_the_checkpoint_of_a_branch_are_left(attempts: list[Stretch], left: list[int]) -> None:
    assert branched_off(attempts) == left


def test_no_attempts_have_no_lines() -> None:
    assert branched_off([]) == []
