"""Comparisons with Prometheus: two runs, a run and a saved report, and a run at two times."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support_history import SCRAPE, History, Try, backfill
from support_ledgers import ended
from support_prometheus import PROMETHEUS, prometheus

from whyidle.advisor.compare.measures import NoComparison
from whyidle.advisor.compare.recorded import Stretch, Window, looked_through, report_of
from whyidle.advisor.compare.starts import FORGOTTEN, Counter, RankStarts, Starts, starts_of
from whyidle.cli.compare.moments import Part, part_of
from whyidle.cli.main import main

pytestmark = pytest.mark.xdist_group("compare-history")
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed")

RANKS = 4
NODES = ("n1", "n1", "n2", "n2")
BEFORE = {"compute": 0.8, "network": 0.15, "data_read": 0.05}
AFTER = {"compute": 0.8, "network": 0.15, "data_read": 0.65}
NIGHT = [
    Try(0, 60, 3000, dict.fromkeys(range(RANKS), BEFORE), NODES, saves=30),
    # It is restarted, and its storage has become slow.
    Try(3200, 60, 1500, dict.fromkeys(range(RANKS), AFTER), NODES, number=1, attach=20, restore=24),
]
HOUR = 3600.0


@pytest.fixture(scope="module")
def past() -> History:
    now = time.time() // 60 * 60
    return History("night", now - 6000, now, NIGHT)


@pytest.fixture(scope="module")
def url(past: History, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    other = History("other", past.began, past.now, NIGHT[:1])
    backfill(folder, past.series(), other.series())
    with prometheus(folder) as running:
        yield running.url


def at(past: History, first: float, last: float) -> str:
    """Two times in seconds from the start of the run, as dates."""
    return "..".join(datetime.fromtimestamp(past.began + each).isoformat() for each in (first, last))


def compared(url: str, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["compare", *words, "--prometheus", url, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@needs_prometheus
def test_says_what_made_a_run_slow_during_the_night(
    url: str, past: History, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"night@{at(past, 300, 2700)}", f"lab/night@{at(past, 3600, 5400)}"]
    found = compared(url, capsys, *words)
    assert [(one["run"], one["ranks"], one["world_size"]) for one in found["runs"]] == [("lab/night", 4, 4)] * 2
    assert [one["seconds_per_step"] for one in found["runs"]] == pytest.approx([1.0, 1.6], rel=0.02)
    (pair,) = found["pairs"]
    families = {row["name"]: row for row in pair["families"]}
    assert families["storage"]["difference"] == pytest.approx(0.6, abs=0.03)
    assert families["storage"]["finding"] == "slower"
    assert families["network"]["difference"] == pytest.approx(0, abs=0.01)
    assert families["compute"]["difference"] == pytest.approx(0, abs=0.03)
    rows = {row["name"]: row for row in pair["rows"]}
    assert (rows["step"]["before"], rows["step"]["after"]) == pytest.approx((1.0, 1.6), rel=0.02)
    assert rows["batch"]["after"] == pytest.approx(0.65, rel=0.03)
    # A histogram with bounds of 0.5, 1, 1.5 and 2 s, with all steps in one bucket.
    assert 0.5 < rows["step-p99"]["before"] <= 1.0
    assert 1.5 < rows["step-p50"]["after"] <= 2.0
    assert rows["startup"]["before"] is None
    assert rows["end"]["finding"] == "not known"
    assert found["notes"] == []


@needs_prometheus
def test_startups_and_restores_count_if_an_attempt_began_in_this_time(
    url: str, past: History, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"night@{at(past, -120, 2760)}", f"night@{at(past, 3120, 5520)}"]
    found = compared(url, capsys, *words)
    rows = {row["name"]: row for row in found["pairs"][0]["rows"]}
    assert (rows["startup"]["before"], rows["startup"]["after"]) == pytest.approx((60, 60), rel=0.01)
    assert (rows["restore"]["before"], rows["restore"]["after"]) == (None, pytest.approx(24, rel=0.01))
    steps = min(one["steps"] for one in found["runs"])
    assert rows["end"]["before"] == pytest.approx(60 + steps, rel=0.02)
    # The restore is in the startup, and not a second time in the steps.
    assert rows["end"]["after"] == pytest.approx(60 + 1.6 * steps, rel=0.02)
    assert rows["dataset"]["before"] is rows["batch-worst"]["after"] is None
    assert [one for one in found["notes"] if "starting" in one] == []
    found = compared(url, capsys, f"night@{at(past, -120, 2760)}", f"night@{at(past, 3240, 5520)}")
    assert any("starting at the beginning of this time" in one for one in found["notes"])
    assert {row["name"]: row for row in found["pairs"][0]["rows"]}["end"]["after"] is None


@needs_prometheus
def test_a_condition_for_ci_is_judged(url: str, past: History, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"night@{at(past, 300, 2700)}", f"night@{at(past, 3600, 5400)}", "--prometheus", url]
    assert main(["compare", *words, "--fail-if", "storage>+100ms", "--fail-if", "network>+10%"]) == 3
    said = capsys.readouterr()
    assert "storage" in said.err
    assert "network" not in said.err
    assert main(["compare", *words, "--fail-if", "startup>+10%"]) == 1
    assert "startup" in capsys.readouterr().err


@needs_prometheus
def test_a_run_without_times_is_its_end(url: str, past: History, capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(url, capsys, "other", "night", "--since", "20m")
    assert [one["seconds_per_step"] for one in found["runs"]] == pytest.approx([1.0, 1.6], rel=0.03)
    assert found["runs"][1]["steps"] == pytest.approx(1200 / 1.6, abs=3 * SCRAPE)


@needs_prometheus
def test_a_saved_report_and_prometheus_agree(
    url: str, past: History, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ledgers of the same run have the same seconds of a step."""
    ledgers = tmp_path / "ledgers"
    ledgers.mkdir()
    ended(ledgers, *History("other", past.began, past.now, NIGHT[:1]).specs())
    assert main(["report", "--dir", str(ledgers), "--json"]) == 0
    saved = tmp_path / "saved.json"
    saved.write_text(capsys.readouterr().out)
    found = compared(url, capsys, str(saved), f"other@{at(past, 120, 2900)}")
    before, after = found["pairs"][0]["whole"]["before"], found["pairs"][0]["whole"]["after"]
    assert after == pytest.approx(before, rel=0.02)
    for row in found["pairs"][0]["families"]:
        if row["name"] in ("compute", "network"):
            assert row["after"] == pytest.approx(row["before"], rel=0.03)


@needs_prometheus
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["night@2h..4h"], "night@2h..4h: '2h..4h' must begin before it ends"),
        (["night@2h..noon"], "night@2h..noon: '2h..noon' must be two times"),
        (["nobody@3h..1h"], "has seen nothing of run nobody"),
        (["someone/night"], "has seen nothing of run night of owner someone"),
        (["night@700h..600h"], "night@700h..600h has made no step in this time"),
        (["night@30s"], "must be 60 s or longer"),
    ],
)
def test_what_cannot_be_compared_is_reported_in_a_sentence(
    words: list[str], sentence: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "night", *words, "--prometheus", url]) == 1
    assert sentence in capsys.readouterr().err


def test_a_missing_prometheus_is_reported_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "b", "--prometheus", "http://127.0.0.1:9"]) == 1
    assert "no Prometheus answers at http://127.0.0.1:9" in capsys.readouterr().err


NOW = datetime.fromisoformat("2026-11-22T12:00:00+00:00").timestamp()


@pytest.mark.parametrize(
    ("argument", "part"),
    [
        ("llama", Part("llama")),
        ("team/llama@26h..24h", Part("team/llama", NOW - 26 * HOUR, NOW - 24 * HOUR)),
        ("llama@90m", Part("llama", NOW - 1.5 * HOUR, NOW)),
        ("a@b@1h..0", Part("a@b", NOW - HOUR, NOW)),
        ("llama@2026-11-22T10:00:00+00:00..1h", Part("llama", NOW - 2 * HOUR, NOW - HOUR)),
        ("me@home", Part("me@home")),
        ("@home", Part("@home")),
        ("llama@", Part("llama@")),
    ],
)
def test_a_part_of_a_runs_time(argument: str, part: Part) -> None:
    assert part_of(argument, NOW) == part


@pytest.mark.parametrize("argument", ["a@1h..", "a@..1h", "a@1h..2h", "a@1h..1h", "a@yesterday..today"])
def test_rejects_times_that_make_no_sense(argument: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        part_of(argument, NOW)


def test_windows_without_steps_count_only_for_the_mean() -> None:
    """A standstill counts for the mean of a step, but not as a window."""
    windows = [Window({"compute": 60.0}, 60.0), Window({"network": 60.0}, 0.0), Window({"compute": 60.0}, 60.0)]
    report = report_of(Stretch(("me", "a"), windows, 120.0, 1, 1))
    assert report["rank_seconds"] / report["per_rank"][0]["steps"] == pytest.approx(1.5)
    assert report["recent"]["step_seconds"] == [1.0, 1.0]


def test_waits_for_late_ranks_count_under_what_made_these_late_if_the_bill_is_known() -> None:
    windows = [Window({"compute": 60.0, "straggler": 40.0}, 10.0)]
    more = looked_through({"compute": 62.0, "storage": 40.0}, {"compute": 62.0, "straggler": 40.0})
    report = report_of(Stretch(("me", "a"), windows, 10.0, 1, 1, looked_through=more))
    assert {family: spent for family, spent in report["explained"].items() if spent} == {
        "compute": 60.0,
        "storage": 40.0,
    }
    assert looked_through({}, {"compute": 1.0}) == {}
    assert report_of(Stretch(("me", "a"), windows, 10.0, 1, 1))["explained"] is None


def test_causes_of_other_agents_are_left_out() -> None:
    windows = [Window({"compute": 60.0, "unheard_of": 60.0}, 60.0)]
    assert report_of(Stretch(("me", "a"), windows, 60.0, 1, 1))["seconds"] == {"compute": 60.0}


ONE_START = RankStarts({0}, Counter(None, 60.0), Counter(None, 20.0), Counter(None, 1.0))


@pytest.mark.parametrize(
    ("ranks", "starts"),
    [
        ([], Starts()),
        ([ONE_START, replace(ONE_START, startup=Counter(None, 61.0))], Starts(81.0, 1, 20.0)),
        # Two restarts, of a rank that had been seen before.
        ([RankStarts({1, 2}, Counter(60.0, 180.0), Counter(0.0, 8.0), Counter(0.0, 2.0))], Starts(64.0, 2, 8.0)),
        ([RankStarts((), Counter(60.0, 60.0), Counter(0.0, 0.0), Counter(0.0, 0.0))], Starts()),
        # An agent that counts from 0 again.
        ([RankStarts({3}, Counter(90.0, 60.0), Counter(0.0, 0.0), Counter(0.0, 0.0))], Starts(60.0)),
        ([ONE_START, replace(ONE_START, attempts={1})], Starts(why_not=FORGOTTEN)),
    ],
)
def test_startups_and_restores_of_ranks(ranks: list[RankStarts], starts: Starts) -> None:
    assert starts_of(dict(enumerate(ranks))) == starts


def test_a_startup_that_is_cut_off_is_not_known() -> None:
    assert "at the end of this time" in starts_of({0: ONE_START}, (False, True)).why_not


def test_runs_without_steps_are_not_compared() -> None:
    with pytest.raises(NoComparison, match="no step"):
        report_of(Stretch(("me", "a"), [Window({"compute": 60.0}, 0.0)], 0.0, 1, 1))
