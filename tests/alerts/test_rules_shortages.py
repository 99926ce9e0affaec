"""Shortages of CPU time: the rules name the same one as the headline of `whyidle report`, in the same words."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from support_rules import assert_promtool
from support_shortage import SHORTAGES, WAITED, WALL, run

from whyidle.alerts.config import DEFAULT
from whyidle.alerts.recording.signals import SHORTAGE_WORDS
from whyidle.verdict import shortage
from whyidle.verdict.verdict import verdict

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


@needs_promtool
def test_rules_and_report_name_the_same_reason(tmp_path: Path) -> None:
    """Each row as a run on its own node. What the report says comes from the same seconds."""
    spent: dict[str, dict[str, float]] = {}
    series: dict[str, float] = {}
    degrees: dict[str, float] = {}
    for row, (ranks, _) in enumerate(SHORTAGES):
        for rank, lacks in enumerate(ranks):
            spent[f"r{row}/{rank}@n{row}"] = {"compute": 1 - WAITED / WALL, "straggler": WAITED / WALL}
            for what, seconds in lacks.items():
                name = f'whyidle_rank_cpu_{what}_seconds_total{{@n{row}, run="r{row}", rank="{rank}"}}'
                series[name] = seconds / WALL
        said = cast(Any, verdict(run(*ranks)))["summary"].removeprefix("ranks take turns at being late: ")
        for name, words in shortage.SHORTAGES.items():
            if said == words:
                degrees[f'{{family="straggler", run="r{row}", shortage="{name}"}}'] = 1
    assert len(degrees) == 4
    case: dict[str, Any] = {
        "name": "as the report",
        "spent": spent,
        "series": series,
        "windows": {"5m": "8m"},
        "expect": {"ceil(run_family:whyidle_shortage:ratioW)": degrees},
    }
    assert_promtool([case], tmp_path)


def test_settings_and_words_are_those_of_the_report() -> None:
    report = shortage.STOLEN_SHARE, shortage.QUEUED_SHARE, shortage.EXPLAINED
    assert (DEFAULT.stolen_share, DEFAULT.queued_share, DEFAULT.explained_share) == report
    assert [*SHORTAGE_WORDS.values()] == [*shortage.SHORTAGES.values()]
