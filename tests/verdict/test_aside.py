"""What a report says of evaluations and rollouts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support_ledgers import Spec, ended
from support_sites import report

from whyidle.cli.report import render_text


def told(folder: Path, step: dict[str, float], **words: int) -> list[str]:
    ended(folder, Spec(steps=120, step=step, words=words))
    found = report(folder)
    sentences = [one["sentence"] for one in found["asides"] if one["sentence"]]
    text = render_text(found, colour=False)
    assert all(f"aside    {sentence}" in text for sentence in sentences)
    return sentences


def evaluated(*steps: int) -> dict[str, int]:
    """The words of evaluations after these steps."""
    return {"evaluations": len(steps), **{f"evaluated_step+{number}": step for number, step in enumerate(steps)}}


def test_says_how_often_it_evaluates_and_how_long_a_batch_takes(tmp_path: Path) -> None:
    step = {"compute": 0.069, "evaluation": 0.031}
    (said,) = told(tmp_path, step, **evaluated(40, 80, 120), eval_batches=93)
    assert said == "evaluation 31 % of the loop, every 40 steps; 93 batches of 40 ms"


def test_says_nothing_of_batches_where_fewer_of_them_than_evaluations_were_seen(tmp_path: Path) -> None:
    step = {"compute": 0.069, "evaluation": 0.031}
    assert told(tmp_path, step, **evaluated(*range(15, 121, 15)), eval_batches=2) == [
        "evaluation 31 % of the loop, every 15 steps"
    ]


@pytest.mark.parametrize(
    ("steps", "every"),
    [((20, 40, 60, 80, 100, 120), 20), ((50, 100, 120), 50), ((100, 120), 100), ((0, 40, 80, 120), 40)],
)
def test_an_evaluation_at_the_end_of_the_training_does_not_change_the_interval(
    steps: tuple[int, ...], every: int, tmp_path: Path
) -> None:
    (said,) = told(tmp_path, {"compute": 0.069, "evaluation": 0.031}, **evaluated(*steps))
    assert said.endswith(f"every {every} steps")


@pytest.mark.parametrize(("blocked", "idle"), [(0.03, 20), (0.01, 10)])
def test_says_how_long_evaluations_are_idle_beside(blocked: float, idle: int, tmp_path: Path) -> None:
    """Not longer than the loop is idle."""
    step = {"compute": 0.07 - blocked, "evaluation": 0.03, "host_blocked": blocked}
    (said,) = told(tmp_path, step, **evaluated(40, 80, 120), eval_idle_ns=int(120 * 0.02e9))
    assert said == f"evaluation 30 % of the loop, every 40 steps; {idle} % more is idle time in evaluations"


def test_says_what_rollouts_are_in(tmp_path: Path) -> None:
    step = {"compute": 0.03, "rollout": 0.04, "host_blocked": 0.03}
    spent = int(120 * 0.07e9)  # it is blocked in a part of it
    (said,) = told(tmp_path, step, rollouts=120, rollout_part_ns=spent)
    assert said == "rollout 70 % of the loop, in each step: generation 70 %"


@pytest.mark.parametrize("step", [{"compute": 0.1}, {"compute": 0.099, "evaluation": 0.001}])
def test_says_nothing_below_2_percent(tmp_path: Path, step: dict[str, float]) -> None:
    assert told(tmp_path, step, evaluations=1) == []
