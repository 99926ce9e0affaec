"""Rules, report and bills agree on random runs: restarts, ranks that join late, bursts, long phases, two owners."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from support_ledgers import write
from support_rules import assert_promtool
from support_timelines import LOOK_SECONDS, SCRAPE_SECONDS, WAITS, Run, worlds

from whyidle.ledger.causes import FAMILIES
from whyidle.ledger.directory import read_directory
from whyidle.verdict.accounts import RunAccount, account

RUNS_EACH = 4
RANDOM_RUNS = int(os.environ.get("WHYIDLE_TEST_RANDOM_RUNS", "12"))
"""How many runs are tested."""
WITHIN = 0.001
"""Tolerance: seconds of a bill, and parts of 1 of a share, because of rounding in sums of decimals."""

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def accounts(runs: list[Run]) -> list[RunAccount]:
    """As `whyidle report` reads them from the ledgers."""
    with TemporaryDirectory() as folder:
        for writer in [write(folder, spec) for run in runs for spec in run.specs()]:
            writer.close()
        ledgers = read_directory(folder, steps=True)[0]
        return [account((run.owner, run.name), ledgers, 0) for run in runs]


def charged(run: Run, whole: RunAccount) -> dict[str, float]:
    """Seconds by family, with waits counted under what made others late, as far as the ranks know. Waits are one family
    here."""
    totals = {**whole.family_seconds(), "waits": 0.0}
    for family in WAITS:
        totals["waits"] += totals.pop(family)
    for spec in run.specs():
        for family, seconds in spec.waited_for.items():
            totals["waits"] -= seconds
            totals["waits" if family in WAITS else family] += seconds
    return totals


def sums(name: str, families: str, more: str, over: str = "") -> str:
    selector = f'{name}{{{more}family=~"{families}"}}{over}'
    return f"(sum({f'sum_over_time({selector})' if over else selector}) or vector(0))"


def expected(runs: list[Run], found: list[RunAccount]) -> dict[str, dict[str, float]]:
    """Queries that answer 1 if the rules have the same result as the report."""
    over, wrong, lost = f"[{LOOK_SECONDS}s]", {}, 0.0
    fleet = dict.fromkeys(FAMILIES, 0.0)
    for run, whole in zip(runs, found, strict=True):
        of = f'owner="{run.owner}", run="{run.name}", '
        startup = sum(rank.startup for rank in whole.ranks)
        totals = charged(run, whole)
        assert sum(totals.values()) == pytest.approx(whole.rank_seconds)
        for family, spent in totals.items():
            which = "|".join(WAITS) if family == "waits" else family
            bill = spent + (startup if family == "host" else 0.0)
            wrong[f"{sums('run_family:whyidle_billed_seconds:increase', which, of, over)} - {bill!r}"] = bill
            lost += bill if family != "compute" else 0.0
            if whole.rank_seconds:
                share = spent / whole.rank_seconds
                wrong[f"{sums('run_family:whyidle_charged:ratio1h', which, of)} - {share!r}"] = share
        everything = whole.rank_seconds + startup
        for family, spent in whole.family_seconds().items():
            share = (spent + (startup if family == "host" else 0.0)) / everything
            wrong[f"{sums('run_family:whyidle_share:ratio1h', family, of)} - {share!r}"] = share
            fleet[family] += spent + (startup if family == "host" else 0.0)
    for family, spent in fleet.items():
        share = spent / sum(fleet.values())
        wrong[f"{sums('cluster_family:whyidle_share:ratio1h', family, '')} - {share!r}"] = share
    rest = "|".join(family for family in FAMILIES if family != "compute")
    wrong[f"{sums('cluster_family:whyidle_billed_seconds:increase', rest, '', over)} - {lost!r}"] = lost
    wrong[f"sum(sum_over_time(node:whyidle_lost_seconds:increase{over})) - {lost!r}"] = lost
    return {f"abs({difference}) < bool {WITHIN}": {"{}": 1} for difference in wrong}


def notation(values: list[float | None]) -> str:
    return " ".join("_" if value is None else repr(value) for value in values)


@given(worlds())
@settings(
    max_examples=max(1, RANDOM_RUNS // RUNS_EACH),
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # making a failing example smaller takes hundreds of calls of promtool
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
def test_rules_report_and_bills_agree_on_random_runs(runs: list[Run]) -> None:
    case = {
        "name": "random runs",
        "every": SCRAPE_SECONDS,
        "series": {name: notation(values) for run in runs for name, values in run.series()},
        "windows": {"1h": f"{LOOK_SECONDS // 60}m"},
        "expect": expected(runs, accounts(runs)),
    }
    with TemporaryDirectory() as folder:
        assert_promtool([case], Path(folder))
