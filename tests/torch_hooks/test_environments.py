"""Experience that a loop of the user's own collects in environments is a rollout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support_forks import Forks

pytestmark = pytest.mark.xdist_group("environments")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("stand_ins")
    done, _ = forks.run(("environments.py", str(folder)), folder, recorded=False)
    assert done.returncode == 0, done.stderr
    return {one["loop"]: one for one in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("loop", ["made_by_gymnasium", "of_an_own_class", "wrapped", "test_agent"])
def test_steps_and_the_policy_between_them_are_a_rollout(told: dict[str, dict[str, Any]], loop: str) -> None:
    spent, found = told[loop]["spent"], told[loop]["found"]
    assert found["environment"] == pytest.approx(spent["environment"], rel=0.1)
    # On busy cores the policy queues for a CPU, and a rollout includes that.
    assert 0.9 < found["rollout"] / (spent["environment"] + spent["policy"]) < 1.5
    assert found["evaluation"] < 0.1 * (spent["policy"] + spent["environment"])


def test_steps_in_evaluation_mode_are_an_evaluation(told: dict[str, dict[str, Any]]) -> None:
    spent, found = told["evaluated"]["spent"], told["evaluated"]["found"]
    assert found["rollout"] == found["environment"] == 0
    assert found["evaluation"] >= 0.9 * spent["evaluation"]


@pytest.mark.parametrize("loop", ["evaluated_by_name", "shares_helpers", "only_evaluates"])
def test_steps_in_a_function_with_the_name_of_an_evaluation_are_one(told: dict[str, dict[str, Any]], loop: str) -> None:
    spent, found = told[loop]["spent"], told[loop]["found"]
    assert found["environment"] == pytest.approx(spent["environment"], rel=0.1)
    assert found["rollout"] == pytest.approx(spent["environment"] + spent["policy"], rel=0.1)
    # On busy cores the policy queues for a CPU, and what runs without gradients includes that.
    assert 0.9 * spent["evaluation"] < found["evaluation"] < 1.5 * spent["evaluation"]


def test_an_error_of_the_environment_reaches_the_loop(told: dict[str, dict[str, Any]]) -> None:
    assert told["fails"]["found"]["evaluation"] == 0


@pytest.mark.parametrize("loop", ["policies", "reference"])
def test_what_a_loop_without_a_loader_runs_without_gradients_in_each_step_is_a_rollout(
    loop: str, tmp_path: Path, forks: Forks
) -> None:
    done, _ = forks.run(("without_a_loader.py", loop), tmp_path, recorded=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0.75 * found["apart"] < found["rollout"] < 1.25 * found["wall"]
    assert found["evaluation"] < 0.1 * found["apart"]
