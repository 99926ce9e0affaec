"""For many random runs, the rules have the same results as plain arithmetic over the same ledgers."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from support_ledgers import Spec, ended
from support_rules import assert_promtool, promtool_test

from whyidle.ledger.causes import CAUSES, FAMILIES, LATE_FAMILIES
from whyidle.ledger.directory import read_directory
from whyidle.verdict.accounts import RunAccount, account
from whyidle.verdict.case import VERDICT_SHARE
from whyidle.verdict.lookthrough import LATE_BY

RUNS, STEPS = 12, 20
TINY = 1e-6
OWNERS = ("a", "b")
WAITS = ("straggler", "pipeline")
RESOLVED = (0.0, 0.3, 0.9, 1.0)
"""How much of a rank's waits for others is resolved."""

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def ranks_of(owner: str, run: str, chance: random.Random) -> list[Spec]:
    """Steps of a second, divided at random among some causes. Some ranks are late because of some families."""
    specs = []
    others = [cause for cause in CAUSES if cause not in ("startup", *WAITS)]
    for rank in range(chance.randint(1, 4)):
        causes = chance.sample(others, chance.randint(1, 5)) + [cause for cause in WAITS if chance.random() < 0.6]
        weights = [chance.randint(1, 64) for _ in causes]
        step = {cause: weight / sum(weights) for cause, weight in zip(causes, weights, strict=True)}
        late = {family: chance.uniform(0.1, 4.0) for family in LATE_FAMILIES if chance.random() < 0.3}
        specs.append(
            Spec(
                rank=rank,
                owner=owner,
                run=run,
                world_size=4,
                node=f"n{rank}",
                steps=STEPS,
                step=step,
                late=late,
                waited_for=waited_for(step, chance),
            )
        )
    return specs


def waited_for(step: dict[str, float], chance: random.Random) -> dict[str, float]:
    known = STEPS * sum(step.get(cause, 0.0) for cause in WAITS) * chance.choice(RESOLVED)
    families = chance.sample([family for family in FAMILIES if family != "compute"], 3)
    weights = [chance.random() for _ in families]
    return {family: known * weight / sum(weights) for family, weight in zip(families, weights, strict=True)}


def charged(whole: RunAccount, specs: list[Spec]) -> dict[str, float]:
    """Seconds by family. Waits for others count under what made those late, as far as it is known."""
    totals = whole.family_seconds()
    waits = sum(totals[family] for family in WAITS)
    known = sum(sum(spec.waited_for.values()) for spec in specs)
    for family in WAITS:
        totals[family] -= totals[family] * known / waits if waits else 0.0
    for spec in specs:
        for family, seconds in spec.waited_for.items():
            totals[family] += seconds
    return totals


def lateness(whole: RunAccount) -> dict[tuple[int, str], float]:
    """The waits for stragglers, divided among the late ranks in proportion to their lateness, by rank and family."""
    waited = sum(rank.seconds["straggler"] for rank in whole.ranks)
    late = sum(sum(rank.late.values()) for rank in whole.ranks)
    found: dict[tuple[int, str], float] = {}
    for rank in whole.ranks:
        for family, seconds in rank.late.items():
            key = rank.rank, LATE_BY.get(family, family)
            found[key] = found.get(key, 0.0) + waited * seconds / late
    return found


def expectations(specs: list[Spec], directory: Path) -> dict[str, dict[str, float]]:
    """The expected results for a run, as queries that answer 1 if the rules have the same result."""
    owner, run = specs[0].owner, specs[0].run
    of = f'owner="{owner}", run="{run}"'
    whole = account((owner, run), read_directory(str(directory), steps=True)[0], 0)
    totals = charged(whole, specs)
    assert sum(totals.values()) == pytest.approx(whole.rank_seconds)
    found: dict[str, dict[str, float]] = {}
    for family, spent in totals.items():
        expr = f'run_family:whyidle_charged:ratio5m{{{of}, family="{family}"}}'
        close = f"abs({expr} - {spent / whole.rank_seconds!r}) < bool {TINY:g}"
        found[close] = {f'{{family="{family}", {of}}}': 1}
    late = lateness(whole)
    for rank in {rank for rank, _ in late}:
        waited = sum(seconds for (of_rank, _), seconds in late.items() if of_rank == rank) / STEPS
        if waited > 0:
            expr = f'run_rank:whyidle_late:rate5m{{{of}, rank="{rank}"}}'
            found[f"abs({expr} - {waited!r}) < bool {TINY:g}"] = {f'{{{of}, rank="{rank}"}}': 1}
    large = [name for name in FAMILIES if totals[name] >= VERDICT_SHARE * sum(totals.values()) and name != "compute"]
    known = [name for name in large if name != "unattributed"] or ["unattributed"]
    family = max(known, key=lambda name: totals[name])
    if totals[family] < VERDICT_SHARE * whole.rank_seconds:
        family = "compute"
    named = f"count by (family, owner, run) (run_family:whyidle_verdict:ratio5m{{{of}}})"
    return {**found, named: {f'{{family="{family}", {of}}}': 1}}


@needs_promtool
def test_the_rules_agree_with_arithmetic(tmp_path: Path) -> None:
    """Two owners have runs with the same names, which must not be added to each other."""
    chance = random.Random(2_026)
    runs = [ranks_of(owner, f"r{number}", chance) for number in range(RUNS) for owner in OWNERS]
    everyone = [spec for specs in runs for spec in specs]
    ended(tmp_path / "ledgers", *everyone)

    def place(spec: Spec) -> str:
        return f"{spec.owner}:{spec.run}/{spec.rank}@{spec.node}"

    def rates(seconds: dict[str, float]) -> dict[str, float]:
        return {family: spent / STEPS for family, spent in seconds.items()}

    case: dict[str, Any] = {
        "name": "as arithmetic",
        "spent": {place(spec): spec.step for spec in everyone},
        "late": {place(spec): rates(spec.late) for spec in everyone},
        "waited_for": {place(spec): rates(spec.waited_for) for spec in everyone},
        "windows": {"5m": "5m"},
        "expect": {
            expr: samples for specs in runs for expr, samples in expectations(specs, tmp_path / "ledgers").items()
        },
    }
    assert_promtool([case], tmp_path)


@needs_promtool
def test_comparison_detects_a_wrong_result(tmp_path: Path) -> None:
    """The comparison can fail: half of the storage seconds do not pass."""
    expr = f'abs(run_family:whyidle_charged:ratio5m{{family="storage"}} - 0.25) < bool {TINY:g}'
    case: dict[str, Any] = {
        "name": "off",
        "spent": {"r/0@n0": {"compute": 0.5, "data_read": 0.5}},
        "windows": {"5m": "5m"},
        "expect": {expr: {'{family="storage", run="r"}': 1}},
    }
    done = promtool_test([case], tmp_path)
    assert done.returncode == 1, done.stdout
