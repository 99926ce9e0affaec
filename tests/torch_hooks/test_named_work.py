"""Evaluations and rollouts that frameworks name, in stand-ins with the frameworks' names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support_forks import Forks

from whyidle.ledger.causes import PHASE
from whyidle.torch_hooks.hooks.named_work import NAMED, Named

pytestmark = pytest.mark.xdist_group("named-work")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("stand_ins")
    done, _ = forks.run(("named_work.py", str(folder)), folder, recorded=False)
    assert done.returncode == 0, done.stderr
    return {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("named", NAMED, ids=lambda one: f"{one.owner}.{one.method}")
def test_a_method_that_a_framework_names_counts_as_that(told: dict[str, dict[str, Any]], named: Named) -> None:
    found = told[f"{named.module} {named.owner} {named.method}"]
    cause = "evaluation" if named.phase == PHASE["eval"] else "rollout"
    if named.part:  # outside a rollout, for example in the update
        assert found["rollout"] == found[named.part] == 0
        return
    data = 0.3 * found["spent"]  # making the loader, and its batches
    assert found["spent"] - data < found[cause] <= found["spent"] + 1_000_000, found
    assert found["eval_batches"] == (2 if cause == "evaluation" else 0)


@pytest.mark.parametrize("trainer", ["grpo_trainer GRPOTrainer", "rloo_trainer RLOOTrainer"])
def test_a_rollout_has_its_parts(told: dict[str, dict[str, Any]], trainer: str) -> None:
    found = told[f"trl.trainer.{trainer} _generate_and_score_completions"]
    parts = [found[part] for part in ("generation", "reward", "log-probabilities")]
    assert all(parts)
    assert sum(parts) == pytest.approx(found["rollout"], rel=0.1)
