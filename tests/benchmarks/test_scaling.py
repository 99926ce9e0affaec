"""The simulated run of many nodes: its ledgers have the seconds that were drawn, and its losses are found again."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from whyidle.advisor.compare.scaling import LOOKED_THROUGH, scaling

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scaling.py"
NODES, STEPS = 16, 40


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_scaling", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def one(bench: ModuleType) -> dict[str, Any]:
    return bench.reported(1, STEPS, bench.LOSSES)


@pytest.mark.parametrize("loss", ["network", "straggler", "cpu", "host"])
def test_a_loss_is_found_in_its_family(bench: ModuleType, one: dict[str, Any], loss: str) -> None:
    """Ranks differ by chance too, which costs a point."""
    report = bench.reported(NODES, STEPS, (loss,))
    assert report["problems"] == []
    seconds = report["rank_seconds"] / (NODES * STEPS)
    assert seconds == pytest.approx(bench.step_seconds(NODES, STEPS, (loss,)), rel=1e-6)
    [_, found] = scaling([("one", one), ("many", report)])
    assert (found.families, found.samples_per_step) == (LOOKED_THROUGH, NODES * bench.SAMPLES)
    truth = 1 - bench.step_seconds(NODES, STEPS, ()) / bench.step_seconds(NODES, STEPS, (loss,))
    assert found.missing[loss] == pytest.approx(truth, abs=0.02)
    assert max(found.missing, key=lambda family: found.missing[family]) == loss
    assert sum(found.missing.values()) == pytest.approx(1 - found.efficiency)


def test_the_parts_of_the_truth_add_up(bench: ModuleType) -> None:
    parts = bench.shapley(NODES, 5)
    whole = bench.step_seconds(NODES, 5, bench.LOSSES) - bench.step_seconds(NODES, 5, ())
    assert sum(parts.values()) == pytest.approx(whole)
