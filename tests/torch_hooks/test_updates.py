"""Loops without an optimizer of torch, in their own process: how many steps are counted, and by what."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support_forks import Forks

pytestmark = pytest.mark.xdist_group("updates")
COUNTED = {
    "own_optimizer": ("updates", 12),
    "reset_before_the_backward_pass": ("updates", 12),
    "in_place": ("updates", 12),
    "accumulated": ("updates", 4),
    "new_tensors": ("updates", 12),
    "unseen": ("backward passes", 12),
    "forces": ("updates", 12),
    "after_a_warm_up": ("", 3),
    "with_an_optimizer": ("", 3),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> dict[str, dict[str, Any]]:
    done, _ = forks.run(("own_updates.py",), tmp_path_factory.mktemp("updates"), recorded=False)
    assert done.returncode == 0, done.stderr
    return {one["loop"]: one for one in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize(("loop", "expected"), COUNTED.items(), ids=COUNTED.keys())
def test_counts_the_steps_of_a_loop(told: dict[str, dict[str, Any]], loop: str, expected: tuple[str, int]) -> None:
    one = told[loop]
    assert (one["by"], one["steps"]) == expected
    assert (one["faults"], one["eval_batches"], one["alive"]) == (0, 0, False)
