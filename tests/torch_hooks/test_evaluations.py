"""Compute that a loop does not learn from, in real loops: what the ledger counts as evaluation, as rollouts, and as
other compute without gradients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support_training import LIMIT_SECONDS

pytestmark = pytest.mark.alone

SCRIPT = Path(__file__).resolve().parents[1] / "support/scripts/evaluations.py"
# loop of the script -> the cause, or the part of compute, that grows by what the loop has spent; none: this is training
GROWS: dict[str, str] = {
    "by_hand": "evaluation",
    "fetches_ahead": "evaluation",
    "forces": "evaluation",
    "validated_forces": "evaluation",
    "forces_by_hand": "evaluation",
    "meta_tested": "evaluation",
    "residuals": "",
    "trains_below_validate": "",
    "sampled": "evaluation",
    "copied": "",
    "two_optimizers": "evaluation",
    "averaged": "",
    "averaged_now_and_then": "",
    "refreshed": "",
    "averaged_and_sampled": "evaluation",
    "decorated": "evaluation",
    "with_gradients": "evaluation",
    "before_a_long_forward_pass": "evaluation",
    "other_loader": "evaluation",
    "generation": "rollout",
    "made_in_forward": "",
    "samples": "evaluation",
    "switched": "no_grad",
    "rollout": "rollout",
    "collected": "rollout",
    "collected_after_an_evaluation": "rollout",
    "fetched_together": "rollout",
    "reentrant": "",
    "own_optimizer": "",
    "lbfgs": "",
    "trained_in_evaluation_mode": "",
    "other_thread": "",
    "attacked": "evaluation",
    "learned_from_an_attack": "",
    "accumulated_from_an_attack": "",
    "accumulated_in_evaluation_mode": "",
    "attacked_in_each_step": "",
    "generator_in_evaluation_mode": "",
    "reduced": "",
    "attacked_and_reduced": "evaluation",
}
ALONE = ["averaged_and_sampled"]
"""Its evaluations are so long that the earlier ones of the same process would not count any more."""
IN_EVALUATION_MODE = [
    "attacked",
    "learned_from_an_attack",
    "accumulated_from_an_attack",
    "accumulated_in_evaluation_mode",
    "attacked_in_each_step",
    "generator_in_evaluation_mode",
    "reduced",
    "attacked_and_reduced",
]
"""Loops with backward passes in that mode."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    env = os.environ | {"WHYIDLE_DIR": str(tmp_path_factory.mktemp("ledgers"))}
    found: dict[str, dict[str, Any]] = {}
    for loops in ([], ALONE, IN_EVALUATION_MODE):
        done = subprocess.run(
            [sys.executable, SCRIPT, *loops],
            env=env,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = {one["loop"]: one for one in map(json.loads, done.stdout.splitlines())} | found
    return found


@pytest.mark.parametrize(("loop", "word"), GROWS.items(), ids=GROWS.keys())
def test_tells_compute_that_is_not_learned_from(told: dict[str, dict[str, Any]], loop: str, word: str) -> None:
    found = told[loop]
    grown = {name: found[name] / found["spent"] for name in ("evaluation", "no_grad", "rollout")}
    for name, share in grown.items():
        assert abs(share - (name == word)) < 0.15, grown


@pytest.mark.parametrize(
    ("loop", "evaluations", "batches"),
    [
        ("forces", 3, 15),
        ("validated_forces", 3, 15),
        ("forces_by_hand", 3, 0),
        ("meta_tested", 3, 0),
        ("attacked", 3, 15),
        ("learned_from_an_attack", 0, 0),
        ("accumulated_from_an_attack", 0, 0),
        ("accumulated_in_evaluation_mode", 0, 0),
        ("accumulated", 0, 0),
        ("refreshed", 0, 0),
        ("sampled", 3, 0),
        ("other_loader", 12, 12),
    ],
)
def test_counts_evaluations_and_their_batches(
    told: dict[str, dict[str, Any]], loop: str, evaluations: int, batches: int
) -> None:
    assert (told[loop]["evaluations"], told[loop]["eval_batches"]) == (evaluations, batches)


@pytest.mark.parametrize(
    ("loop", "evaluations", "batches"),
    [("fetches_ahead", 3, 15), ("second_loader", 0, 0), ("averaged_and_sampled", 3, 0)],
)
def test_at_most_the_first_step_of_a_loop_looks_like_an_evaluation(
    told: dict[str, dict[str, Any]], loop: str, evaluations: int, batches: int
) -> None:
    found = told[loop]
    assert evaluations <= found["evaluations"] <= evaluations + 1
    assert batches <= found["eval_batches"] <= batches + 2


def test_a_pass_over_the_data_before_the_first_backward_pass_is_startup(told: dict[str, dict[str, Any]]) -> None:
    found = told["statistics"]
    assert found["window"] >= 0
    assert (found["batches"], found["eval_batches"]) == (1, 0)


def test_between_two_steps_it_is_compute_and_not_the_loops_own_python(told: dict[str, dict[str, Any]]) -> None:
    for loop in ("decorated", "with_gradients", "samples"):
        assert told[loop]["host"] < 0.15 * told[loop]["spent"], told[loop]
