"""Runs on other nodes: a real Prometheus with hours of history agrees with their ledgers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support_history import SCRAPE, History, Try, backfill
from support_ledgers import ended
from support_prometheus import PROMETHEUS, prometheus

from whyidle.advisor.compare.recorded import Stretch
from whyidle.advisor.goodput import goodput
from whyidle.advisor.history import Process, ProcessKey, Recorded, goodput_of, holes, set_bounds, stalled, standstills
from whyidle.cli.main import main
from whyidle.cli.prometheus import runs, stretch
from whyidle.cli.prometheus.client import Prometheus
from whyidle.cli.prometheus.runs import Chosen
from whyidle.ledger.directory import read_directory

pytestmark = pytest.mark.xdist_group("history")
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed")

SAVER = {"compute": 0.55, "network": 0.3, "checkpoint_write": 0.1, "checkpoint_cpu": 0.05}
WAITER = {"compute": 0.55, "network": 0.3, "straggler": 0.15}
PAIR = {rank: {"compute": 0.8, "network": 0.2} for rank in range(2)}


def steps(repeated: float = 0.0) -> dict[int, dict[str, float]]:
    """Steps of six ranks, of which the first saves."""
    found = {}
    for rank in range(6):
        step = SAVER if rank == 0 else WAITER
        again = {"recompute": step["compute"] * repeated} if repeated else {}
        found[rank] = {**step, "compute": step["compute"] * (1 - repeated), **again}
    return found


NODES = ("n1", "n1", "n2", "n2", "n3", "n3")
MOVED = (*NODES[:4], "n4", "n4")
RESTARTED = [
    Try(0, 130, 900, steps(), NODES, saves=90),
    # A node is replaced. Agents still have the series of the ended ranks.
    Try(1250, 100, 600, steps(60 / 600), MOVED, saves=60, repeated=60, number=1, attach=45),
    # They have forgotten the ranks, and know them again when they return.
    Try(3300, 40, 400, steps(20 / 400), MOVED, saves=40, repeated=20, number=2, attach=25),
]
ALL_RUNS = (
    "lab/branched, lab/crashed, lab/elastic, lab/failed, lab/finished, lab/live, lab/moved, lab/on_cpus, "
    "lab/partial, lab/restarted"
)
BRANCHED = [
    replace(RESTARTED[0], stopped=True),
    Try(1250, 100, 600, steps(60 / 600), NODES, saves=60, repeated=60, number=1, restored=("continued", 840, 0)),
    Try(2300, 100, 300, steps(), NODES, saves=30, number=2, restored=("branched", 700, 0)),
]
ELASTIC = [
    Try(0, 60, 900, {0: {"compute": 1.0}, 1: {"compute": 1.0}}, NODES[:2]),
    Try(1200, 60, 900, {rank: {"compute": 1.0, "network": 0.25} for rank in range(6)}, NODES, number=1),
]
ON_CPUS = [
    Try(0, 60, 600, PAIR, NODES[:2], unused=1),
    Try(800, 60, 600, PAIR, NODES[:2], number=1, unused=2),
    Try(1600, 60, 600, PAIR, NODES[:2], number=2),
]
"""Attempts of two ranks: one of them trains on the CPU beside a GPU, then both, then none."""
STANDS = Try(0, 60, 1_000_000, PAIR, ("n5", "n6"), halt=(600, 300.0))


@pytest.fixture(scope="module")
def past() -> dict[str, History]:
    now = time.time() // 60 * 60
    return {
        "restarted": History("restarted", now - 4500, now, RESTARTED),
        "branched": History("branched", now - 3600, now, BRANCHED),
        "on_cpus": History("on_cpus", now - 3000, now, ON_CPUS),
        "elastic": History("elastic", now - 3600, now, ELASTIC),
        "live": History("live", now - 1800, time.time(), [STANDS]),
        "partial": History("partial", now - 3600, now, [replace(RESTARTED[0], number=1)], world_size=8),
        "unruly": History("unruly", now - 1800, now, [STANDS]),
        "crashed": History("crashed", now - 3600, now, [RESTARTED[0], replace(RESTARTED[1], killed=True)]),
        "failed": History("failed", now - 3600, now, [RESTARTED[0], replace(RESTARTED[1], killed=False, failed=True)]),
        "finished": History(
            "finished", now - 3600, now, [replace(RESTARTED[0], killed=True), replace(RESTARTED[1], killed=False)]
        ),
        "moved": History("moved", now - 4000, now, [RESTARTED[0], replace(RESTARTED[1], nodes=NODES)], 0, 1500.0),
    }


@pytest.fixture(scope="module")
def url(past: dict[str, History], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    backfill(folder, *(one.series(recorded=name != "unruly") for name, one in past.items()))
    with prometheus(folder) as running:
        yield running.url


@pytest.fixture(autouse=True)
def _then(past: dict[str, History], monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the histories, however long the queries take."""
    monkeypatch.setattr(runs, "time", SimpleNamespace(time=lambda: past["live"].now))


def told(url: str, run: str, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["goodput", run, "--prometheus", url, "--since", "3h", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


@needs_prometheus
def test_prometheus_agrees_with_the_ledgers_of_all_nodes(
    url: str, past: dict[str, History], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The difference is at most one scrape for each rank and attempt."""
    ended(tmp_path, *past["restarted"].specs())
    truth = goodput(("lab", "restarted"), read_directory(str(tmp_path), steps=True)[0], time.monotonic_ns())
    found = told(url, "restarted", capsys)
    assert (found["owner"], found["ranks"], found["world_size"]) == ("lab", 6, 6)
    for part, seconds in truth.seconds.items():
        assert found["seconds"][part] == pytest.approx(seconds, abs=6 * 3 * SCRAPE), part
    assert found["ettr"] == pytest.approx(truth.ettr, abs=0.01)
    assert found["computed_seconds"] == pytest.approx(truth.computed, abs=6 * SCRAPE)
    for one, true in zip(found["attempts"], truth.attempts, strict=True):
        assert (one["number"], one["ranks"], one["alive"]) == (true.number, true.ranks, False)
        assert one["steps"] == pytest.approx(true.steps, abs=SCRAPE)
        assert one["repeated"] == pytest.approx(true.repeated, abs=2)
        assert one["saves"] == pytest.approx(true.saves, abs=2)
        assert one["seconds"] == pytest.approx(true.seconds, abs=2 * SCRAPE)
        assert one["startup"] == pytest.approx(true.startup, abs=1)
    assert (found["failures"], truth.failures) == (2, 2)
    assert found["watched_seconds"] == pytest.approx(truth.watched, abs=3 * 2 * SCRAPE)
    assert found["saving"]["blocked"] == pytest.approx(truth.blocked / truth.saves, rel=0.05)
    assert found["saving"]["blocked_cpu"] == pytest.approx(truth.blocked_cpu / truth.saves, rel=0.05)
    assert len(found["problems"]) == 1, "whether the last attempt was killed is not known, and nothing is missing"


@needs_prometheus
def test_training_on_the_cpu_beside_gpus_is_not_progress(
    url: str, past: dict[str, History], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(tmp_path, *past["on_cpus"].specs())
    truth = goodput(("lab", "on_cpus"), read_directory(str(tmp_path), steps=True)[0], time.monotonic_ns())
    assert (truth.seconds["unused"], truth.seconds["productive"]) == pytest.approx((3 * 600, 3 * 600), abs=1)
    assert truth.ettr == pytest.approx(3 * 600 / (2 * 2260), abs=0.01)
    found = told(url, "on_cpus", capsys)
    for part, seconds in truth.seconds.items():
        assert found["seconds"][part] == pytest.approx(seconds, abs=6 * 3 * SCRAPE), part
    assert found["ettr"] == pytest.approx(truth.ettr, abs=0.02)


@needs_prometheus
def test_tells_a_branch_from_a_preemption_as_the_ledgers_do(
    url: str, past: dict[str, History], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(tmp_path, *past["branched"].specs())
    truth = goodput(("lab", "branched"), read_directory(str(tmp_path), steps=True)[0], time.monotonic_ns())
    found = told(url, "branched", capsys)
    for one, true in zip(found["attempts"], truth.attempts, strict=True):
        assert (one["began"], one["restored_step"], one["restored_from"], one["base"]) == (
            true.began,
            true.restored_step,
            true.restored_from,
            true.base,
        )
        assert one["branched"] == pytest.approx(true.branched, abs=SCRAPE)
    assert [one.began for one in truth.attempts] == ["first", "preemption", "branched"]
    assert [one.branched for one in truth.attempts] == [200, 540, 0]
    for part, seconds in truth.seconds.items():
        assert found["seconds"][part] == pytest.approx(seconds, abs=6 * 3 * SCRAPE), part
    assert truth.seconds["branched"] > 3000


@needs_prometheus
def test_says_how_well_a_run_scales_whose_attempts_have_other_numbers_of_ranks(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    [small, large] = told(url, "elastic", capsys)["scaling"]
    assert (small["world_size"], large["world_size"], large["name"]) == (2, 6, "6 ranks")
    assert large["efficiency"] == pytest.approx(0.8, abs=0.02)
    assert large["missing"]["network"] == pytest.approx(0.2, abs=0.02)
    assert "steps are compared" in large["assumed"]
    [other, _] = told(url, "live", capsys, "--reference", "elastic")["scaling"]
    assert (other["name"], other["world_size"], other["reference"]) == ("elastic", 6, "2 ranks")


@needs_prometheus
def test_a_size_that_cannot_be_compared_does_not_cost_the_goodput(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = stretch.ask

    def standing(asked: Prometheus, chosen: Chosen) -> Stretch:
        found = ask(asked, chosen)
        return replace(found, windows=[]) if found.world_size == 6 else found

    monkeypatch.setattr(stretch, "ask", standing)
    found = told(url, "elastic", capsys)
    assert found["scaling"] == []
    assert any("without the attempt of 6 ranks" in one for one in found["problems"]), found["problems"]


@needs_prometheus
def test_a_run_may_be_named_with_its_owner(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(url, "lab/restarted", capsys)["attempts"] == told(url, "restarted", capsys)["attempts"]


@needs_prometheus
def test_a_live_run_without_progress_has_stalled(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(url, "live", capsys)
    (one,) = found["attempts"]
    assert one["alive"]
    assert found["seconds"]["startup"] == pytest.approx(2 * 60)
    assert 2 * (300 - 2 * 30 - 2) <= found["seconds"]["stalled"] <= 2 * 300
    assert found["failures"] == 0
    assert not found["problems"]


@needs_prometheus
def test_an_agent_that_returns_at_another_address_does_not_start_an_attempt(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(url, "moved", capsys)
    assert [(one["number"], one["steps"], one["saves"]) for one in found["attempts"]] == [
        (0, pytest.approx(900, abs=SCRAPE), pytest.approx(90, abs=2)),
        (1, pytest.approx(600, abs=SCRAPE), pytest.approx(60, abs=2)),
    ]
    assert found["failures"] == 1


@needs_prometheus
@pytest.mark.parametrize(
    ("run", "clean", "failed", "failures"),
    [("crashed", False, False, 2), ("failed", False, True, 2), ("finished", True, False, 1)],
)
def test_a_last_attempt_whose_ranks_failed_or_were_killed_is_a_failure(
    run: str, clean: bool, failed: bool, failures: int, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(url, run, capsys)
    last = found["attempts"][-1]
    assert (last["clean"], last["failed"], found["failures"]) == (clean, failed, failures)
    assert not found["problems"]


@needs_prometheus
def test_says_what_prometheus_did_not_record(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    problems = "\n".join(told(url, "partial", capsys)["problems"])
    assert "attempts before attempt 1 are outside" in problems
    assert "2 of 8 ranks of attempt 1 were not seen" in problems


@needs_prometheus
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["other"],
            f"has seen nothing of run other in the last 3.00 h; it has {ALL_RUNS}",
        ),
        (["live", "--owner", "me"], "has seen nothing of run live of owner me"),
        (["live", "--cluster", "east"], "in cluster east"),
        (["unruly"], "its rules are missing, or of an older whyidle. Write them with `whyidle rules --out rules`"),
        (
            [],
            f"has several runs: {ALL_RUNS}. Say which one",
        ),
    ],
)
def test_rejects_a_run_unknown_to_prometheus(
    url: str, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["goodput", *words, "--prometheus", url, "--since", "3h"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("whyidle goodput: ")
    assert sentence in err


# -- bounds of a what-if


@needs_prometheus
def test_bounds_are_those_of_the_last_seconds_of_a_run(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["live", "--prometheus", url, "--since", "10m"]
    assert main(["whatif", *words, "--json", "--price", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bounds_only"]
    assert (found["ranks"], found["accelerated"]) == (2, False)
    assert found["step_seconds"] == pytest.approx(1.0, rel=0.02)
    bounds = {row["options"]: (row["least"], row["most"]) for row in found["changes"]}
    assert bounds["--network none"] == (0, pytest.approx(0.2, abs=0.01))
    assert bounds["--storage none"] == (0, pytest.approx(0, abs=0.01))
    assert found["changes"][0]["money_most"] == pytest.approx(0.2 * found["gpu_hours"] * 2, rel=0.05)
    assert main(["whatif", *words, "--network", "x2", "--compute", "x1.25", "--sweep"]) == 0
    out = capsys.readouterr().out
    for said in ("bounds only", "36.0 %", "flat from", "not predictions", "the last 12.0 min of the run\n"):
        assert said in out, out


@needs_prometheus
@pytest.mark.parametrize("since", ["1m", "5m", "7m", "11m"])
def test_seconds_and_steps_of_a_whatif_are_of_the_same_time(
    url: str, since: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", "live", "--prometheus", url, "--since", since, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_seconds"] == pytest.approx(1.0, rel=0.02)


@needs_prometheus
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["live", "--workers", "+2"], "--workers needs them, see --dir"),
        (["live", "--pipeline", "balance"], "--pipeline needs them, see --dir"),
        (["live", "--network", "x0.5"], "factors must be above 1"),
        (["partial", "--straggler", "none"], "2 ranks were not seen"),
        (["other"], "has seen nothing of run other in the last 30.0 days"),
    ],
)
def test_reports_a_change_without_bounds_with_a_sentence_and_a_status(
    url: str, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", *words, "--prometheus", url]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err


@needs_prometheus
def test_reports_an_ended_run_up_to_its_end(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", "partial", "--prometheus", url, "--since", "10m"]) == 0
    out = capsys.readouterr().out
    assert "the last 12.0 min of the run, which ended" in out
    assert "2 more ranks of the run were not seen" in out


# -- the arithmetic


def attempt(number: int = 0, start: float = 0.0, seconds: float = 100.0, steps: int = 100, **fields: Any) -> Recorded:
    """An attempt of two ranks that was seen from its start, every 10 s."""
    who = ProcessKey("n1", 0, number, "1")
    counted = [(start + at, min(float(steps), at)) for at in range(0, int(seconds) + 1, 10)]
    witness = Process(who, start, start, start + seconds, opened=start, switched=start + seconds, counted=counted)
    given = {"ranks": 2, "world_size": 2, "seconds": {"compute": 2 * seconds}, "saves": 0, "alive": False, **fields}
    return Recorded(witness=witness, steps=steps, **given)


def test_the_time_between_attempts_is_recovery() -> None:
    attempts = [attempt(), attempt(1, start=160.0, seconds=50.0, steps=50)]
    set_bounds(attempts, 0.0, 1000.0, apart=10.0)
    found = goodput_of(("lab", "r1"), attempts)
    assert found.seconds["recovery"] == pytest.approx(2 * 60.0)
    assert found.seconds["productive"] == pytest.approx(2 * 150.0)
    assert (found.failures, found.recoveries) == (1, [60.0])


def test_a_restore_is_recovery() -> None:
    attempts = [attempt(), attempt(1, start=100.0, seconds=60.0, steps=50)]
    attempts[1].seconds = {"startup": 2 * 4.0, "checkpoint_read": 2 * 6.0, "compute": 2 * 50.0}
    set_bounds(attempts, 0.0, 1000.0, apart=10.0)
    found = goodput_of(("lab", "r1"), attempts)
    assert found.seconds["recovery"] == pytest.approx(2 * 10.0)
    assert found.recoveries == [pytest.approx(10.0)]


def test_a_standstill_is_longer_than_ten_steps_and_not_a_save() -> None:
    one = attempt(seconds=400.0, steps=100)
    set_bounds([one], 0.0, 1000.0, apart=10.0)
    assert standstills(one) == [(100.0, 400.0)]
    # Minus a step of a second, and what both ranks saved meanwhile.
    assert stalled(one, [(100.0, 400.0)], [0.0]) == pytest.approx(2 * (300 - 100 / 99))
    assert stalled(one, [(100.0, 400.0)], [500.0]) == pytest.approx(2 * (300 - 100 / 99) - 500)
    assert standstills(attempt(seconds=400.0, steps=400)) == []


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [(2000.0, ""), (1900.0, ""), (1000.0, "50.0 % of the time of attempt"), (4000.0, "100.0 % more")],
)
def test_reports_a_gap_in_the_records(seconds: float, sentence: str) -> None:
    one = attempt(seconds=1000.0, steps=1000)
    one.seconds = {"compute": seconds}
    one.alive = True
    set_bounds([one], 0.0, 1000.0, apart=10.0)
    assert [sentence in said for said in holes([one])] == ([True] if sentence else [])
