"""Bounds of a what-if from sums: the replay of the same steps is always within them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from schedules.case import Case
from schedules.cases import random_cases
from schedules.replay import replay
from schedules.traces import trace_of
from support_ledgers import Spec, ended

from whyidle.advisor.whatif.bounds import NoBounds, Spent, answer, most
from whyidle.advisor.whatif.changes import NONE, Changes
from whyidle.advisor.whatif.replay import saved
from whyidle.advisor.whatif.trace import RankStep, RankTrace, Trace
from whyidle.cli.main import main
from whyidle.ledger.causes import CAUSES

MS = 1_000_000
CHANGES = (
    Changes(network=NONE),
    Changes(network=0.5),
    Changes(storage=0.5),
    Changes(host=NONE, cpu=NONE),
    Changes(no_stragglers=True),
    Changes(storage=NONE, no_stragglers=True),
)
ENDS = 0.002
"""Ranks do not end their last step at the same moment, so the gain of a run of few steps differs slightly by rank."""


def waits(trace: Trace) -> Iterator[tuple[int, tuple[int, int, int] | None, int]]:
    """(rank, number of the collective, ns), or None for messages."""
    for one in trace.ranks:
        for step in one.steps:
            numbers: dict[int, int] = {}
            for call in step.calls:
                slot = one.slots[call.slot]
                numbers[slot.key] = numbers.get(slot.key, 0) + 1
                yield one.rank, None if slot.pairwise else (slot.key, step.number, numbers[slot.key]), call.ns


def spent_of(trace: Trace) -> Spent:
    """What the ledgers of the ranks say about the same steps: of a wait in a collective, the smallest wait of any
    member is network, and the rest is straggler."""
    least: dict[tuple[int, int, int], int] = {}
    for _, key, ns in waits(trace):
        if key is not None:
            least[key] = min(ns, least.get(key, ns))
    found = {one.rank: dict.fromkeys(CAUSES, 0.0) for one in trace.ranks}
    for one in trace.ranks:
        for step in one.steps:
            for cause, ns in zip(CAUSES, step.own, strict=True):
                found[one.rank][cause] += ns
    for rank, key, ns in waits(trace):
        transfer = 0 if key is None else least[key]
        found[rank]["network"] += transfer
        found[rank]["pipeline" if key is None else "straggler"] += ns - transfer
    return Spent(list(found.values()), len(trace.ranks[0].steps))


def assert_within(trace: Trace, changes: Changes) -> None:
    share = sum(saved(trace, changes)) / sum(trace.walls)
    assert -1e-9 <= share <= most(spent_of(trace), changes) + ENDS, changes


@pytest.mark.parametrize(
    "case", [case for case in random_cases(60) if case.ranks <= 6][:12], ids=lambda case: case.name
)
def test_a_replay_is_within_the_bounds(case: Case) -> None:
    trace = trace_of(replay(case))
    for changes in CHANGES:
        assert_within(trace, changes)


def loop(chance: Random) -> Trace:
    """One rank that waits for its data workers in some steps."""
    steps, end = [], 0
    for number in range(1, 31):
        own = [0] * len(CAUSES)
        for cause in chance.sample(("compute", "host", "data_read", "data_cpu", "data_queue", "data_handoff"), 4):
            own[CAUSES.index(cause)] = chance.randint(0, 50) * MS
        own[CAUSES.index("compute")] += 20 * MS
        end += sum(own)
        steps.append(RankStep(number, end, sum(own), tuple(own), 0, ()))
    return Trace((RankTrace(0, "boot", {}, chance.choice((0, 1, 3)), tuple(steps)),), 0, False)


def test_a_replay_of_data_workers_is_within_the_bounds() -> None:
    chance = Random(2026)
    for _ in range(20):
        trace = loop(chance)
        for changes in (*CHANGES, Changes(storage=0.9), Changes(cpu=0.5), Changes(compute=0.5), Changes(host=0.5)):
            assert_within(trace, changes)


LATE_READER = (
    {"compute": 50.0, "straggler": 60.0, "network": 10.0},
    {"compute": 50.0, "data_read": 60.0, "network": 10.0},
)


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        (Changes(network=NONE), 10 / 120),  # the late rank does not wait, so no rank gains more than it does
        (Changes(network=0.1), 10 / 120),
        (Changes(storage=NONE), 60 / 120),
        (Changes(host=NONE), 0),
        (Changes(network=1 / 1.05), 1 - 1 / 1.05),
        (Changes(no_stragglers=True), 60 / 120),
        (Changes(network=NONE, storage=NONE), 70 / 120),
    ],
    ids=str,
)
def test_the_rank_with_the_least_gain_bounds_all(changes: Changes, share: float) -> None:
    assert most(Spent(LATE_READER, 1), changes) == pytest.approx(share)


def test_ranks_without_collectives_gain_independently() -> None:
    apart = Spent(({"compute": 50.0, "host": 50.0}, {"compute": 100.0}), 1)
    assert most(apart, Changes(host=NONE)) == pytest.approx(0.25)


def test_an_asynchronous_save_may_serialise_beside_the_loop() -> None:
    own = Spent(({"compute": 60.0, "checkpoint_write": 10.0, "checkpoint_cpu": 30.0},), 1)
    assert most(own, Changes(async_save=True)) == pytest.approx(0.4)


def test_without_a_change_each_loss_is_removed_alone() -> None:
    found = answer(Spent(LATE_READER, 1), Changes(), swept=True)
    rows = {row["options"]: row["most"] for row in found["changes"]}
    assert list(rows.values()) == sorted(rows.values(), reverse=True)
    assert (rows["--storage none"], rows["--network none"]) == (0.5, pytest.approx(10 / 120))
    assert found["together"] is None
    shares = [point["most"] for point in found["sweep"]["points"]]
    assert shares == sorted(shares)


def test_rejects_changes_that_sums_cannot_predict() -> None:
    for changes, sentence in (
        (Changes(workers=1), "--workers needs them"),
        (Changes(balanced=True), "--pipeline needs them"),
        (Changes(network=2.0), "factors must be above 1"),
    ):
        with pytest.raises(NoBounds, match=sentence):
            most(Spent(LATE_READER, 1), changes)
    with pytest.raises(NoBounds, match="2 ranks were not seen"):
        most(Spent(LATE_READER, 1, missing=2), Changes(no_stragglers=True))


# -- a saved report


def asked(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(list(map(str, words)))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_saved_report_has_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = {"compute": 0.08, "network": 0.02}
    ended(tmp_path / "ledgers", *(Spec(rank=rank, steps=50, step=steps, world_size=3) for rank in (0, 1)))
    _, report, _ = asked(capsys, "report", "--json", "--dir", tmp_path / "ledgers")
    saved_report = tmp_path / "report.json"
    saved_report.write_text(report)
    code, out, err = asked(capsys, "whatif", "--network", "none", "--json", "--report", saved_report)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["bounds_only"]
    assert (found["run"], found["ranks"], found["steps"]) == ("r1", 2, 50)
    assert found["changes"][0]["most"] == pytest.approx(0.2)
    assert "1 more ranks of the run were not seen" in found["notes"][0]


def test_a_rank_that_has_not_begun_counts_as_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = {"compute": 0.08, "network": 0.02}
    ended(tmp_path / "ledgers", Spec(rank=0, steps=50, step=steps, world_size=2), Spec(rank=1, steps=0, world_size=2))
    _, report, _ = asked(capsys, "report", "--json", "--dir", tmp_path / "ledgers")
    (tmp_path / "report.json").write_text(report)
    code, out, err = asked(capsys, "whatif", "--network", "none", "--json", "--report", tmp_path / "report.json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["ranks"] == 1
    assert "1 more ranks of the run were not seen" in found["notes"][0]


def test_rejects_a_number_of_steps_without_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        asked(capsys, "report", "--least-steps", "inf", "--dir", tmp_path)
    assert "'inf': give a number of steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words", "why"),
    [
        ({"per_rank": []}, (), "no rank has finished a step"),
        ({"steps": 0}, (), "no rank has finished a step"),
        ({"per_rank": [{"steps": 5}]}, (), "seconds must be an object"),
        ({"per_rank": [{"steps": 5, "seconds": {"compute": "much"}}]}, (), "the seconds of compute must be a number"),
        ({"format": 99}, (), "update whyidle"),
        ({}, ("r1",), "leave out RUN and --prometheus"),
        ({}, ("--workers", "+2"), "--workers"),
    ],
)
def test_rejects_a_report_without_the_needed_sums(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, object],
    words: tuple[str, ...],
    why: str,
) -> None:
    numbers = dict.fromkeys(("ranks", "world_size", "steps", "wall_seconds", "startup_seconds", "rank_seconds"), 2)
    whole = {"run": "r1", **numbers, "seconds": {}, "per_rank": [{"steps": 2, "seconds": {"compute": 2.0}}], **change}
    path = tmp_path / "report.json"
    path.write_text(json.dumps(whole))
    code, out, err = asked(capsys, "whatif", *words, "--report", path)
    assert (code, out) == (1, "")
    assert why in err
