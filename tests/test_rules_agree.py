"""The rules conclude what `whyidle report` concludes from the same ledgers: of many runs, the same random ones."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support_ledgers import Spec, ended
from support_rules import promtool_file

from whyidle.ledger.causes import CAUSES, LATE_FAMILIES
from whyidle.ledger.directory import read_directory
from whyidle.verdict.accounts import account
from whyidle.verdict.verdict import look_through, verdict

RUNS, STEPS = 12, 20
TINY = 1e-6

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def ranks_of(run: str, chance: random.Random) -> list[Spec]:
    """Steps of a second, parted at random over some causes; some ranks are late by some families."""
    specs = []
    for rank in range(chance.randint(1, 4)):
        causes = chance.sample([cause for cause in CAUSES if cause != "startup"], chance.randint(1, 5))
        weights = [chance.randint(1, 64) for _ in causes]
        step = {cause: weight / sum(weights) for cause, weight in zip(causes, weights, strict=True)}
        late = {family: chance.uniform(0.1, 4.0) for family in LATE_FAMILIES if chance.random() < 0.3}
        specs.append(Spec(rank=rank, run=run, world_size=4, node=f"n{rank}", steps=STEPS, step=step, late=late))
    return specs


def expectations(run: str, directory: Path) -> dict[str, dict[str, float]]:
    """What the report says of a run, as queries that answer 1 if the rules say so too."""
    whole = account(("lab", run), read_directory(str(directory), steps=True)[0], 0)
    totals, charges, _ = look_through(whole)
    found: dict[str, dict[str, float]] = {}
    for family, spent in totals.items():
        charged = f'run_family:whyidle_charged:ratio5m{{run="{run}", family="{family}"}}'
        expr = f"abs({charged} - {spent / whole.rank_seconds!r}) < bool {TINY:g}"
        found[expr] = {f'{{family="{family}", run="{run}"}}': 1}
    for rank in {charge.rank for charge in charges}:
        waited = sum(charge.seconds for charge in charges if charge.rank == rank) / STEPS
        if waited > 0:
            late = f'run_rank:whyidle_late:rate5m{{run="{run}", rank="{rank}"}}'
            found[f"abs({late} - {waited!r}) < bool {TINY:g}"] = {f'{{rank="{rank}", run="{run}"}}': 1}
    conclusion = verdict(whole)
    assert conclusion is not None
    named = f'count by (family, run) (run_family:whyidle_verdict:ratio5m{{run="{run}"}})'
    return {**found, named: {f'{{family="{conclusion["family"]}", run="{run}"}}': 1}}


@needs_promtool
def test_the_rules_agree_with_the_report(tmp_path: Path) -> None:
    chance = random.Random(2_026)
    specs = {f"r{number}": ranks_of(f"r{number}", chance) for number in range(RUNS)}
    ended(tmp_path / "ledgers", *(spec for ranks in specs.values() for spec in ranks))
    case: dict[str, Any] = {
        "name": "as the report",
        "spent": {f"{spec.run}/{spec.rank}@{spec.node}": spec.step for ranks in specs.values() for spec in ranks},
        "late": {
            f"{spec.run}/{spec.rank}@{spec.node}": {family: late / STEPS for family, late in spec.late.items()}
            for ranks in specs.values()
            for spec in ranks
        },
        "windows": {"5m": "5m"},
        "expect": {expr: samples for run in specs for expr, samples in expectations(run, tmp_path / "ledgers").items()},
    }
    path = promtool_file([case], tmp_path)
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_it_would_notice(tmp_path: Path) -> None:
    """The comparison is no tautology: half of the storage seconds would not do."""
    expr = f'abs(run_family:whyidle_charged:ratio5m{{family="storage"}} - 0.25) < bool {TINY:g}'
    case: dict[str, Any] = {
        "name": "off",
        "spent": {"r/0@n0": {"compute": 0.5, "data_read": 0.5}},
        "windows": {"5m": "5m"},
        "expect": {expr: {'{family="storage", run="r"}': 1}},
    }
    path = promtool_file([case], tmp_path)
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stdout
