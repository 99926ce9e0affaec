"""What-if: predictions from replayed steps, compared with a simulator's exact replay and with real runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from schedules.case import Case
from schedules.cases import cases
from schedules.replay import Replay, replay
from schedules.traces import slot, trace_of
from support_forks import Forks
from support_ledgers import Spec, ended
from support_quiet import wait_for_quiet

from whyidle.advisor.whatif.answer import answer
from whyidle.advisor.whatif.changes import NONE, Changes, factor, written
from whyidle.advisor.whatif.predict import Basis, flat_from, interval, predict, sweep
from whyidle.advisor.whatif.replay import saved
from whyidle.advisor.whatif.trace import NoTrace, RankStep, RankTrace, Trace
from whyidle.cli.main import main
from whyidle.ledger.causes import CAUSES
from whyidle.ledger.directory import run_of
from whyidle.ledger.layout import Call

MS = 1_000_000
NO_TRANSFERS = {"pp_transfer": 0, "dp_transfer": 0, "tp_transfer": 0}


def _healthy(case: Case) -> Replay:
    return replay(case.healthy())


def _without_transfers(case: Case) -> Replay:
    return replay(replace(case.healthy(), **NO_TRANSFERS))


def _balanced(case: Case) -> Replay:
    assert case.fault is not None
    even = 1 + (case.fault.size + case.heavy_last) / case.pp
    return replay(replace(case.healthy(), forward=int(case.forward * even), heavy_last=0.0))


LATE = Changes(no_stragglers=True)
TRUTHS: dict[str, tuple[Changes, Callable[[Case], Replay], Callable[[Case], bool]]] = {
    # What changes, the runs in which it is, and where it can be predicted. Stages of a pipeline have no peers.
    "read": (LATE, _healthy, lambda case: case.pp == 1),
    "decode": (LATE, _healthy, lambda case: case.pp == 1),
    "pause": (LATE, _healthy, lambda case: case.pp == 1),
    "compute": (LATE, _healthy, lambda case: case.pp == 1),
    "reads_turn": (LATE, _healthy, lambda case: case.pp == 1),
    "stage": (Changes(balanced=True), _balanced, lambda case: True),
    "link_tp": (Changes(network=NONE), _without_transfers, lambda case: True),
    "link_dp": (Changes(network=NONE), _without_transfers, lambda case: True),
    "link_pp": (Changes(network=NONE), _without_transfers, lambda case: True),
}


@pytest.mark.parametrize("kind", TRUTHS)
def test_a_prediction_is_close_to_the_exact_replay_of_the_changed_run(kind: str) -> None:
    """The error is that of the step time, over all meshes that can have this fault."""
    changes, changed, told = TRUTHS[kind]
    errors = []
    for case in (case for case in cases() if case.fault and case.fault.kind == kind and told(case)):
        trace = trace_of(replay(case))
        then, truth = sum(trace.walls) - sum(saved(trace, changes)), sum(trace_of(changed(case)).walls)
        errors.append(abs(then / truth - 1))
    assert mean(errors) < 0.015
    assert max(errors) < 0.06


@pytest.mark.parametrize("case", cases()[::23], ids=lambda case: case.name)
def test_a_replay_without_a_change_equals_the_record(case: Case) -> None:
    assert saved(trace_of(replay(case)), Changes()) == pytest.approx([0.0] * case.steps, abs=1)


# -- small runs, made by hand


def _step(number: int, own: dict[str, int], waits: tuple[int, ...]) -> RankStep:
    """A step that waits at its end, in ms."""
    whole = sum(own.values())
    calls = [Call(number, 0, wait * MS, 0 if place else whole * MS) for place, wait in enumerate(waits)]
    wall = (whole + sum(waits)) * MS
    causes = tuple(own.get(cause, 0) * MS for cause in CAUSES)
    return RankStep(number, number * wall, wall, causes, 0, tuple(calls))


def _run(*ranks: tuple[dict[str, int], tuple[int, ...]], steps: int = 20, workers: int = 0, queue: int = 0) -> Trace:
    """Ranks that do the same in each step, with their own time by cause and their waits, in ms."""
    world = {0: slot(0, "world", 1, len(ranks), queue=queue)}
    return Trace(
        tuple(
            RankTrace(rank, "boot", world, workers, tuple(_step(n, own, waits) for n in range(1, steps + 1)))
            for rank, (own, waits) in enumerate(ranks)
        ),
        0,
        False,
    )


def _saved_ms(trace: Trace, changes: Changes) -> float:
    """What is saved in a step after the first steps, in ms."""
    return mean(saved(trace, changes)[5:]) / MS


LATE_READER = (({"compute": 50}, (70,)), ({"compute": 50, "data_read": 60}, (10,)))
"""Rank 1 reads for 60 ms, and the transfer takes 10 ms."""


@pytest.mark.parametrize(
    ("changes", "ms"),
    [
        (LATE, 60),  # all ranks gain what the late rank gains
        (Changes(storage=0.5), 30),
        (Changes(network=NONE), 10),
        (Changes(network=0.5), 5),
        (Changes(storage=NONE, network=NONE), 70),
        (Changes(compute=0.5), 25),
        (Changes(cpu=NONE, host=NONE, checkpoint=NONE), 0),
    ],
    ids=str,
)
def test_predicts_changes_of_a_run_with_a_late_rank(changes: Changes, ms: float) -> None:
    assert _saved_ms(_run(*LATE_READER), changes) == pytest.approx(ms)


@pytest.mark.parametrize("cause", ["host_blocked", "rollout"])
@pytest.mark.parametrize("changes", [LATE, Changes(host=NONE, causes=("rollout",))], ids=str)
def test_what_makes_a_rank_late_is_removed_between_the_waits_where_it_is(cause: str, changes: Changes) -> None:
    """Rank 1 is late by 60 ms, after the first collective of the step: by a reward, for example."""

    def step(number: int, gaps: tuple[int, int], waits: tuple[int, int], **own: int) -> RankStep:
        calls = tuple(Call(number, 0, wait * MS, gap * MS) for wait, gap in zip(waits, gaps, strict=True))
        return RankStep(number, number * 100 * MS, 100 * MS, tuple(own.get(c, 0) * MS for c in CAUSES), 0, calls)

    world = {0: slot(0, "world", 1, 2)}
    ranks = (
        [step(n, (10, 10), (5, 65), compute=30) for n in range(1, 21)],
        [step(n, (10, 70), (5, 5), compute=30, **{cause: 60}) for n in range(1, 21)],
    )
    trace = Trace(tuple(RankTrace(rank, "boot", world, 0, tuple(steps)) for rank, steps in enumerate(ranks)), 0, False)
    assert _saved_ms(trace, changes) == pytest.approx(60)


def test_a_gain_of_a_rank_that_waits_for_another_does_not_count() -> None:
    early = (({"compute": 50, "host": 30}, (30,)), ({"compute": 100}, (10,)))
    assert _saved_ms(_run(*early), Changes(host=NONE)) == pytest.approx(0)


def test_a_transfer_in_which_threads_got_no_cpu_is_shorter_with_faster_cpus() -> None:
    even = _run(({"compute": 50}, (20,)), ({"compute": 50}, (20,)), queue=100)  # as long as the transfers themselves
    assert _saved_ms(even, Changes(cpu=NONE)) == pytest.approx(10)
    found = predict(Basis.of(even), Changes(network=NONE))  # threads might queue for as long
    assert (found.least, found.share, found.most) == pytest.approx((10 / 70, 20 / 70, 20 / 70))


READER = ({"compute": 60, "data_read": 30, "data_cpu": 10}, ())
"""A loop that waits for its worker for 40 of 100 ms. The worker reads for 75 ms and decodes for 25 ms."""


@pytest.mark.parametrize(
    ("workers", "changes", "ms"),
    [
        (1, Changes(compute=0.5), 0),  # the worker still takes 100 ms for a batch
        (1, Changes(storage=0.8), 15),
        (1, Changes(storage=0.5), 37.5),
        (1, Changes(storage=NONE), 40),  # then the loop takes 60 ms
        (1, Changes(workers=1), 40),
        (1, Changes(workers=1, compute=0.5), 50),  # two workers make a batch in 50 ms
        (0, Changes(storage=0.5), 15),  # the loop reads the data itself
        (0, Changes(compute=0.5), 30),
        (0, Changes(workers=1), 40),
    ],
    ids=str,
)
def test_a_loop_is_limited_by_its_workers(workers: int, changes: Changes, ms: float) -> None:
    assert _saved_ms(_run(READER, workers=workers), changes) == pytest.approx(ms, abs=0.01)


@pytest.mark.parametrize(
    ("workers", "starts", "worker_start", "ms", "least"),
    [
        (0, 0.0, None, 40, 40),
        (0, 0.1, None, 40 - 0.1 * (2 * 40 + 40), 40 - 0.1 * (2 * 200 + 40)),  # 2 starts, and the first batch
        (1, 0.1, 25 * MS, 40 - 0.1 * 2 * 25, None),  # it waits for the first batch already
        (1, 0.0, None, 40, None),
    ],
)
def test_workers_start_at_each_epoch(
    workers: int, starts: float, worker_start: float | None, ms: float, least: float | None
) -> None:
    """An epoch of 10 steps starts two more workers."""
    trace = _run(READER, workers=workers)
    trace = replace(trace, ranks=(replace(trace.ranks[0], starts=starts, worker_start=worker_start),))
    more = Changes(workers=2)
    assert _saved_ms(trace, more) == pytest.approx(ms, abs=0.01)
    if least is not None:
        assert _saved_ms(trace, more.least()) == pytest.approx(least, abs=0.01)
    assert _saved_ms(trace, Changes(compute=0.5)) == _saved_ms(_run(READER, workers=workers), Changes(compute=0.5))


def test_workers_that_get_no_cpu_decode_no_faster_when_there_are_more() -> None:
    crowded = ({"compute": 60, "data_cpu": 20, "data_queue": 20}, ())
    assert _saved_ms(_run(crowded, workers=1), Changes(workers=4)) == pytest.approx(0, abs=0.01)


def test_an_asynchronous_save_still_copies() -> None:
    saving = ({"compute": 60, "checkpoint_write": 30, "checkpoint_cpu": 10}, ())
    assert _saved_ms(_run(saving), Changes(async_save=True)) == pytest.approx(30)
    assert _saved_ms(_run(saving), Changes(checkpoint=0.5)) == pytest.approx(20)


def test_an_asynchronous_save_of_a_loop_that_saves_in_its_own_way_copies_nothing_or_blocks_as_before() -> None:
    saving = ({"compute": 60, "checkpoint_write": 10, "checkpoint_cpu": 30}, ())
    trace = replace(_run(saving, steps=400), own_saves=True)
    assert _saved_ms(trace, Changes(async_save=True)) == pytest.approx(40)
    assert _saved_ms(trace, Changes(cpu=0.5)) == pytest.approx(15)
    found = predict(Basis.of(trace), Changes(async_save=True))
    assert (found.least, found.share) == (pytest.approx(0, abs=0.01), pytest.approx(0.4, abs=0.01))


@pytest.mark.parametrize(("write", "ms"), [(30, 30), (60, 40), (90, 10)])
def test_an_asynchronous_save_waits_until_the_one_before_it_is_written(write: int, ms: float) -> None:
    saving = ({"compute": 100 - write, "checkpoint_write": write}, ())
    assert _saved_ms(_run(saving, steps=400), Changes(async_save=True)) == pytest.approx(ms, abs=0.5)


@pytest.mark.parametrize(
    ("write", "more", "ms"),
    [(60, Changes(storage=0.1), 60), (30, Changes(compute=0.1), 70), (30, Changes(compute=0.5), 65)],
)
def test_an_asynchronous_save_waits_as_other_changes_let_it(write: int, more: Changes, ms: float) -> None:
    """A faster storage has written it before the next one. With faster compute, the next one comes sooner."""
    saving = ({"compute": 100 - write, "checkpoint_write": write}, ())
    assert _saved_ms(_run(saving, steps=400), replace(more, async_save=True)) == pytest.approx(ms, abs=0.5)


def test_a_small_save_after_a_large_one_waits_for_it() -> None:
    large, small = {"compute": 50, "checkpoint_write": 500}, {"compute": 50, "checkpoint_write": 1}
    steps = tuple(_step(number, large if number % 20 == 1 else small, ()) for number in range(1, 401))
    trace = _run(({"compute": 50}, ()))
    trace = replace(trace, ranks=(replace(trace.ranks[0], steps=steps),))
    # 519 ms are written in 20 steps of 50 ms: after that, nothing is left
    assert 20 <= _saved_ms(trace, Changes(async_save=True)) <= 519 / 20


@pytest.mark.parametrize("after", [0, 1_000, 10_000])
def test_own_time_after_a_message_was_issued_is_saved_after_it(after: int) -> None:
    """Rank 0 issues a message ``after`` ns after the wait for another one. Half of the 50 ms that it computes then
    cannot make the message earlier."""
    calls = (
        (Call(2, 0, 100 * MS, 10 * MS, 1, False, 0), Call(2, 0, 0, 50 * MS, 1, True, 50 * MS - after)),
        (Call(2, 0, 0, 100 * MS, 0, True, 0), Call(2, 0, 10 * MS, 5 * MS, 0, False, 5 * MS)),
    )
    ranks = []
    for rank, compute in enumerate((60, 151)):
        own = tuple(compute * MS if cause == "compute" else 0 for cause in CAUSES)
        step = RankStep(2, 161 * MS, 161 * MS, own, 0, calls[rank])
        ranks.append(RankTrace(rank, "boot", {0: slot(0, "pipe", 1, 2, pairwise=True)}, 0, (step,)))
    [spared] = saved(Trace(tuple(ranks), 0, True), Changes(compute=0.5))
    assert spared / MS == pytest.approx(74.04, abs=0.02)


def test_an_unsplit_wait_counts_only_for_the_upper_bound() -> None:
    even = _run(({"compute": 80}, ()))
    ranks = tuple(
        replace(one, steps=tuple(step._replace(wall=100 * MS, unsplit=20 * MS) for step in one.steps))
        for one in even.ranks
    )
    found = predict(Basis.of(Trace(ranks, 0, False)), Changes(network=0.5))
    assert (found.share, found.most) == (pytest.approx(0), pytest.approx(0.2))


def test_bounds_are_narrow_for_even_steps_and_wide_for_uneven_ones() -> None:
    assert interval([1.0] * 64, [10.0] * 64) == (pytest.approx(0.1), pytest.approx(0.1))
    low, high = interval([1.0 + 4 * (step % 8 == 0) for step in range(64)], [10.0] * 64)
    assert low < 0.15 < high


def test_a_sweep_says_where_it_becomes_flat() -> None:
    curve = list(sweep(Basis.of(_run(READER, workers=1)), Changes(storage=0.5)))
    shares = [found.share for _, found in curve]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(0.4, abs=0.015)  # before its second wait, the loader is not known to be slow
    assert written(flat_from(curve)) == "x2"


@pytest.mark.parametrize(("text", "value"), [("x10", 0.1), ("x0.5", 2.0), ("none", 0.0)])
def test_a_factor_is_read_and_written(text: str, value: float) -> None:
    assert factor(text) == pytest.approx(value)
    assert written(value) == text


@pytest.mark.parametrize("text", ["10", "x", "x0", "xnan", "x1e3", "x-1", "", "NONE"])
def test_rejects_an_invalid_factor(text: str) -> None:
    with pytest.raises(ValueError, match="write xK"):
        factor(text)


def test_rejects_a_change_of_something_not_recorded() -> None:
    basis = Basis.of(_run(READER, workers=-1))
    with pytest.raises(NoTrace, match="needs PyTorch"):
        predict(basis, Changes(workers=1))
    with pytest.raises(NoTrace, match="needs a pipeline"):
        predict(basis, Changes(balanced=True))


# -- the command

ALONE = Spec(world_size=1, steps=100, step={"compute": 0.05, "data_read": 0.04, "host": 0.01})
TEXT = """\
run lab/r1 · 1 rank · 99 of 100 steps replayed · 100.0 ms a step · 0.00278 rank-hours so far

a step takes    saves   at least   at most   rank-hours   money   with
     80.0 ms   20.0 %     20.0 %    20.0 %     0.000556   $0.01   --storage x2
"""


def _whatif(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["whatif", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_text_gives_the_predicted_step_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended(tmp_path, ALONE)
    code, out, err = _whatif(capsys, "r1", "--dir", str(tmp_path), "--storage", "x2", "--price", "10")
    assert (code, err) == (0, "")
    table, assumed = out.split("\n\nassumed  storage: ")
    assert [line.split() for line in table.splitlines()] == [line.split() for line in TEXT.splitlines()]
    assert assumed.startswith("reads of data workers")


def test_a_loss_that_looks_have_found_is_the_one_of_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loop is blocked in its own code, half of the time in a function that makes batches."""
    words = {"blocked_looks": 100, "data_looks+0": 50, "data_blocked_on+0": 50}
    spec = Spec(run="own", world_size=1, steps=200, step={"compute": 0.05, "host_blocked": 0.05}, words=words)
    ended(tmp_path, replace(spec, strings={"data_below": "train.py:12 get_batch"}))
    code, out, err = _whatif(capsys, "own", "--dir", str(tmp_path), "--json")
    assert code == 0, err
    spared = {row["options"]: row["share"] for row in json.loads(out)["changes"]}
    assert spared["--storage none"] == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(("in_host", "share"), [(40, 0.7), (0, 0.5)], ids=["idle in host", "works in host"])
def test_what_a_device_did_is_removed_as_it_is_in_the_report(
    in_host: int, share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the looks found a device without work in compute. Some found it so in `host`, or none did."""
    words = {"looks": 200, "empty_looks": 100, "empty_host_looks": in_host}
    spec = Spec(run="own", world_size=1, device="cuda", steps=200, step={"compute": 0.08, "host": 0.02}, words=words)
    ended(tmp_path, spec)
    _, out, _ = _whatif(capsys, "own", "--host", "none", "--storage", "none", "--dir", str(tmp_path), "--json")
    found = {row["options"]: [row[name] for name in ("least", "share", "most")] for row in json.loads(out)["changes"]}
    error = 2 * (0.25 / 200) ** 0.5
    assert found["--host none"] == pytest.approx([share - error, share, share + error], abs=0.005)
    assert found["--storage none"] == [0, 0, 0]


def test_without_a_change_each_loss_is_removed_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended(tmp_path, ALONE)
    code, out, _ = _whatif(capsys, "--dir", str(tmp_path), "--json", "--sweep")
    found = json.loads(out)
    assert code == 0
    assert [row["options"] for row in found["changes"]][:2] == ["--storage none", "--host none"]
    assert [round(row["share"], 3) for row in found["changes"]][:3] == [0.4, 0.1, 0.0]
    assert found["together"] is None
    assert found["sweep"]["options"] == ["--network"]
    assert found["price"] is None


REFUSED: dict[str, tuple[list[Spec], list[str], str]] = {
    "no such run": ([ALONE], ["other"], "no ledger of run other in"),
    "no step": ([replace(ALONE, steps=0)], [], "no rank has finished a step yet"),
    "a rank is missing": ([replace(ALONE, world_size=3)], [], "2 of 3 ranks have no ledger here (1, 2)"),
    "no pipeline": ([ALONE], ["--pipeline", "balance"], "--pipeline needs a pipeline"),
    "two attempts": (
        [replace(ALONE, world_size=2), replace(ALONE, rank=1, world_size=2, attempt=1)],
        [],
        "the ranks are in different attempts",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_reports_an_impossible_prediction_with_a_sentence_and_a_status(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    specs, words, sentence = REFUSED[name]
    ended(tmp_path, *specs)
    code, out, err = _whatif(capsys, *words, "--dir", str(tmp_path))
    assert (code, out) == (1, "")
    assert err.startswith("whyidle whatif: ")
    assert sentence in err


@pytest.mark.parametrize(
    "words", [("--network", "10"), ("--workers", "4"), ("--checkpoint", "later"), ("--price", "-1")]
)
def test_rejects_invalid_arguments(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended_with:
        main(["whatif", *words])
    assert ended_with.value.code == 2
    assert repr(words[1]) in capsys.readouterr().err


# -- a real run


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.xdist_group("pairs")
def test_predicts_a_real_run_without_its_late_rank_and_slow_reads(tmp_path: Path, forks: Forks) -> None:
    """The gain of each change is the time that the ranks themselves recorded."""
    wait_for_quiet()
    found, codes = forks.run(("whatif.py",), tmp_path / "run", 2)
    assert codes == [0, 0], found.stderr
    facts = [found.rank(rank)[0].facts for rank in range(2)]
    assert {ledger.loader_workers for ledger in found.ledgers} == {0}
    run = run_of(found.ledgers[0])
    for changes, lost in ((LATE, facts[1]["late"]), (Changes(storage=NONE), facts[0]["reads"])):
        told: Any = answer(run, found.ledgers, time.monotonic_ns(), changes)
        gained = told["changes"][0]["share"] * told["step_seconds"] * told["replayed_steps"]
        assert gained == pytest.approx(lost, rel=0.25), told
