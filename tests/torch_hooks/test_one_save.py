"""One checkpoint is one: its files, its bytes and its time, however the program saves it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support_forks import Forks

pytestmark = pytest.mark.xdist_group("one-save")
LOOPS = (
    "recoverables",
    "inline",
    "archive",
    "in_a_rollout",
    "through_memory",
    "through_pickle",
    "copies",
    "marked",
    "by_hand",
    "rank_that_waits",
    "goes_on",
)
CALLS = ("recoverables", "archive", "through_memory")
"""Those that save in a function of their own. The first call is known only from its first file on."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> dict[str, dict[str, Any]]:
    files, folder = map(tmp_path_factory.mktemp, ("files", "ledgers"))
    done, _ = forks.run(("one_save.py", str(files)), folder, recorded=False)
    assert done.returncode == 0, done.stderr
    return {one["loop"]: one for one in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("loop", LOOPS)
def test_counts_checkpoints_and_not_their_files(told: dict[str, dict[str, Any]], loop: str) -> None:
    one = told[loop]
    assert one["found"]["saves"] == one["told"]["saves"]
    assert (one["found"]["loads"], one["found"]["faults"]) == (0, 0)


@pytest.mark.parametrize("loop", LOOPS)
def test_counts_their_bytes(told: dict[str, dict[str, Any]], loop: str) -> None:
    found, size = (told[loop][which]["bytes"] for which in ("found", "told"))
    assert abs(found - size) <= 0.1 * size * (loop in CALLS) + 0.01 * size, (found, size)


@pytest.mark.parametrize("loop", [loop for loop in LOOPS if loop not in ("goes_on", "through_pickle")])
def test_counts_all_of_their_time(told: dict[str, dict[str, Any]], loop: str) -> None:
    found, spent = (told[loop][which]["ns"] for which in ("found", "told"))
    first = spent / 5 if loop in CALLS else 0
    assert spent - first - 0.1 * spent - 10_000_000 < found < spent * 1.1 + 30_000_000, (found, spent)
