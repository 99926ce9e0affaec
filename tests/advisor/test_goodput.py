"""How much of a run was progress, and how often to save, for attempts that were killed, restarted or continue."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support_ledgers import Spec, children, ended

from whyidle.advisor.checkpoints import Saving, advise, available, mtbf_range, optimal, young
from whyidle.advisor.goodput import Goodput, goodput
from whyidle.cli.main import main
from whyidle.ledger.background import BACKGROUND_LABELS
from whyidle.ledger.causes import CAUSE
from whyidle.ledger.deaths import OomKill
from whyidle.ledger.directory import read_directory

STEP = {"compute": 0.75, "checkpoint_write": 0.1875, "checkpoint_cpu": 0.0625}
"""Seconds of a step of all ranks. Each step has one save, to keep the sums simple."""
SAVES = {"checkpoints": 40}
LOG = OomKill("log", True, 900 << 20)


def looked_at(folder: Path) -> Goodput:
    return goodput(("lab", "r1"), read_directory(str(folder), steps=True)[0], time.monotonic_ns())


def both(spec: Spec) -> list[Spec]:
    return [replace(spec, rank=rank) for rank in range(2)]


def killed(folder: Path, *specs: Spec) -> None:
    with children(folder, *specs) as ranks:
        for rank in ranks:
            rank.kill()


FIRST = Spec(attempt=0, startup=4.0, steps=40, step=STEP, words=SAVES, idle=30.0)
"""Killed 30 s ago, after 40 steps in 40 s."""
SECOND = Spec(
    attempt=1,
    startup=2.0,
    steps=20,
    step=STEP,
    words={"checkpoints": 20, "base_step": 35, "recompute_until": 40},
    idle=0.0,
)
"""Started 22 s ago, with 5 steps that the first attempt had finished."""


def test_every_rank_second_is_in_one_part(tmp_path: Path) -> None:
    killed(tmp_path, *both(FIRST))
    with children(tmp_path, *both(SECOND)):
        found = looked_at(tmp_path)
    expected = {
        "productive": 2 * (40 + 15) * 0.75,
        "saving": 2 * 60 * 0.25,
        "lost": 2 * 5 * 0.75,
        "stalled": 0.0,
        "startup": 2 * 4.0,
        "recovery": 2 * (30.0 - 22.0 + 2.0),
    }
    # The time that writing and reading the ledgers takes is in recovery and productive.
    late = found.all - sum(expected.values())
    assert late >= 0
    for part, seconds in expected.items():
        assert found.seconds[part] == pytest.approx(seconds, abs=late + 0.01), part
    assert found.seconds["saving"] == pytest.approx(expected["saving"])
    assert found.ettr == pytest.approx(found.seconds["productive"] / found.all)
    assert found.computed == pytest.approx(found.seconds["productive"], abs=late + 0.01)  # without repeated steps
    assert [(one.number, one.steps, one.repeated, one.alive) for one in found.attempts] == [
        (0, 40, 0, False),
        (1, 20, 5, True),
    ]
    assert (found.failures, found.saves, found.steps) == (1, 60, 60)
    assert (found.blocked, found.blocked_cpu) == (pytest.approx(15.0), pytest.approx(60 * 0.0625))


def test_a_suspension_has_stalled_the_run_however_long_ago_it_was(tmp_path: Path) -> None:
    """The ledger does not have its step any more."""
    killed(tmp_path, Spec(world_size=1, steps=100, step={"compute": 0.1, "suspended": 0.02}))
    assert looked_at(tmp_path).seconds["stalled"] == pytest.approx(2.0)


def test_evaluations_and_rollouts_are_parts_of_their_own(tmp_path: Path) -> None:
    step = {"compute": 0.5, "evaluation": 0.3, "rollout": 0.2}
    words = {"base_step": 0, "recompute_until": 10}
    ended(tmp_path, Spec(startup=2.0, steps=40, step=step, words=words))
    found = looked_at(tmp_path)
    expected = {"productive": 15.0, "evaluation": 9.0, "rollout": 6.0, "lost": 10.0, "startup": 2.0}
    assert {part: spent for part, spent in found.seconds.items() if spent > 0.1} == pytest.approx(expected, abs=0.1)
    assert found.ettr == pytest.approx(21 / 42, abs=0.01)


def test_long_evaluations_between_steps_are_not_stalled_and_count_once(tmp_path: Path) -> None:
    """Rank 0 evaluates for a minute in each of five steps, and rank 1 waits for it."""
    ended(tmp_path, *both(Spec(startup=2.0, steps=300, step={"compute": 1.0, "evaluation": 1.0})))
    ledgers = read_directory(str(tmp_path), steps=True)[0]
    evaluation, compute, wait = (CAUSE[cause] for cause in ("evaluation", "compute", "collective"))
    for ledger in ledgers:
        steps = []
        for step in ledger.ring:
            causes = [0] * len(step.causes)
            causes[compute] = 10**9
            causes[evaluation if ledger.rank == 0 else wait] = 60 * 10**9 if step.number % 60 == 0 else 0
            steps.append(replace(step, wall_ns=sum(causes), causes=tuple(causes)))
        ledger.ring = steps
    found = goodput(("lab", "r1"), ledgers, time.monotonic_ns())
    assert found.seconds["stalled"] == 0.0
    assert found.seconds["productive"] == pytest.approx(600, abs=1)
    assert found.seconds["evaluation"] == pytest.approx(600, abs=1)


def test_a_run_that_ended_well_has_no_failure_and_one_that_was_killed_has_one(tmp_path: Path) -> None:
    ended(tmp_path / "well", *both(FIRST))
    assert looked_at(tmp_path / "well").failures == 0
    killed(tmp_path / "killed", *both(FIRST))
    found = looked_at(tmp_path / "killed")
    assert (found.failures, found.recoveries) == (1, [])


def test_an_attempt_that_ended_well_is_not_a_failure_even_if_another_one_followed(tmp_path: Path) -> None:
    ended(tmp_path, *both(FIRST))
    with children(tmp_path, *both(SECOND)):
        found = looked_at(tmp_path)
    assert (len(found.attempts), found.failures, found.recoveries) == (2, 0, [])


def test_an_exception_that_ends_one_rank_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended(tmp_path, FIRST, replace(FIRST, rank=1, failed=True))
    [attempt] = looked_at(tmp_path).attempts
    assert (attempt.clean, attempt.failed, looked_at(tmp_path).failures) == (False, True, 1)
    assert main(["goodput", "--dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "failed\n" in printed
    assert "failures  1 in 40.0 s" in printed


@pytest.mark.parametrize(
    ("oom", "saw_alive", "later", "said"),
    [
        (None, 1, 0.0, "rank 0 ended with an error"),  # it was only near its limit
        (OomKill("count", False), 1, 0.0, "rank 1 was killed when the kernel"),
        (OomKill("count", False), 2, 0.0, "rank 0 ended with an error"),
        (OomKill("count", False), 0, 0.0, "rank 0 ended with an error"),
        (LOG, 0, 0.0, "rank 1 was killed by the kernel"),
        (LOG, 2, 0.0, "rank 0 ended with an error"),
        (LOG, 0, 0.6, "rank 0 ended with an error"),
    ],
)
def test_the_failure_is_the_error_unless_memory_is_known_to_have_run_out_before(
    oom: OomKill | None, saw_alive: int, later: float, said: str, tmp_path: Path
) -> None:
    """torchrun kills the other ranks after an error, also those that are near their limit."""
    failure = {"failure": "ValueError - train.py:31 main"}
    ended(tmp_path, replace(FIRST, failed=True, idle=30.0, strings=failure, words=SAVES | {"alive_at_end": saw_alive}))
    memory = {"memory_of": 2, "memory_limit_bytes": 1000 << 20, "memory_used_bytes": 940 << 20}
    killed(tmp_path, replace(FIRST, rank=1, words=SAVES | memory))
    first, second = sorted(read_directory(str(tmp_path), steps=True)[0], key=lambda ledger: ledger.rank)
    second.words["heartbeat_ns"] = (first.last_sign_ns + round((later - 0.1) * 1e9),)
    second.words["accounted_ns"] = second.words["phase_since_ns"] = second.words["heartbeat_ns"]
    second.oom = oom
    [attempt] = goodput(("lab", "r1"), [first, second], time.monotonic_ns()).attempts
    assert attempt.failure.startswith(said)


def test_memory_is_not_the_failure_if_another_rank_had_an_error_before_it_was_killed(tmp_path: Path) -> None:
    memory = {"memory_of": 2, "memory_limit_bytes": 1000 << 20, "memory_used_bytes": 940 << 20}
    raised = replace(FIRST, strings={"failure": "ValueError - train.py:31 main"})
    killed(tmp_path, raised, replace(FIRST, rank=1, words=SAVES | memory))
    [attempt] = looked_at(tmp_path).attempts
    assert attempt.failure == ""


def test_only_a_rank_whose_memory_was_near_its_limit_is_named_if_no_rank_failed(tmp_path: Path) -> None:
    memory = {"memory_of": 2, "memory_limit_bytes": 1000 << 20, "memory_used_bytes": 940 << 20}
    killed(tmp_path, FIRST, replace(FIRST, rank=1, words=SAVES | memory))
    [attempt] = looked_at(tmp_path).attempts
    assert attempt.failure.startswith("rank 1 was killed, or crashed: its control group was at 94 %")


@pytest.mark.parametrize(("requeues", "failures"), [(0, 4), (3, 2)])
def test_attempts_that_left_no_ledger_are_counted(
    requeues: int, failures: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scheduler may have started the job again before a rank began."""
    strings = {"failure": "ValueError - train.py:31 main"}
    ended(tmp_path, *both(replace(FIRST, failed=True)))
    ended(tmp_path, replace(SECOND, failed=True, strings=strings), replace(SECOND, rank=1))
    words = SECOND.words | {"requeues": requeues}
    with children(tmp_path, *both(replace(SECOND, attempt=4, words=words))):
        found = looked_at(tmp_path)
        assert main(["goodput", "--dir", str(tmp_path)]) == 0
    assert ([one.number for one in found.attempts], found.unseen, found.failures) == ([0, 1, 4], [2, 3], failures)
    printed = capsys.readouterr().out
    assert "· 5 attempts ·" in printed
    unseen = "attempts 2 and 3 were not seen: they ended before their first sign of training, or have no ledger here"
    assert f"problem  {unseen}\n" in printed
    assert "(attempt 1: rank 0 ended with an error: ValueError at train.py:31 main)\n" in printed


@pytest.mark.parametrize(("requeues", "failures"), [(0, 2), (2, 0)])
def test_attempts_before_the_first_ledger_are_counted(requeues: int, failures: int, tmp_path: Path) -> None:
    ended(tmp_path, *both(replace(FIRST, attempt=2, words=FIRST.words | {"requeues": requeues})))
    found = looked_at(tmp_path)
    assert ([one.number for one in found.attempts], found.unseen, found.failures) == ([2], [0, 1], failures)
    assert found.interruptions == 0, "these may have lost nothing"
    assert replace(found, whole=False).unseen == []


def test_a_live_rank_that_has_stood_still_for_long_has_stalled(tmp_path: Path) -> None:
    with children(tmp_path, *both(Spec(steps=40, step={"compute": 0.5}, phase="collective", idle=60.0))):
        found = looked_at(tmp_path)
    beyond = found.seconds["stalled"]
    assert beyond > 2 * (60.0 - 0.5)
    assert found.seconds["productive"] == pytest.approx(found.all - beyond - 2 * 3.0, abs=0.01)


def test_compute_of_a_stalled_step_is_not_productive(tmp_path: Path) -> None:
    with children(tmp_path, *both(Spec(steps=40, step={"compute": 0.5}, phase="compute", idle=60.0))):
        found = looked_at(tmp_path)
    assert found.computed == pytest.approx(found.seconds["productive"])


# -- how often to save


def test_interval_is_that_of_the_published_formula() -> None:
    """arXiv 2410.18124: a failure each 6,000 s, a recovery of 600 s, saves of 10 s, steps of 15 s give 24 steps."""
    cycle = optimal(6000, 600, 10)
    assert (cycle - 10) / 15 == pytest.approx(24.2, abs=0.05)
    assert young(6000, 10) == pytest.approx(346.4, abs=0.05)


@pytest.mark.parametrize("save", [0.5, 10.0, 120.0])
def test_no_interval_gives_more_progress_than_the_optimal_one(save: float) -> None:
    best = available(optimal(6000, 600, save), 6000, 600, save)
    assert all(available(cycle, 6000, 600, save) <= best for cycle in range(1, 6000, 7))


def test_bounds_the_mean_time_between_failures() -> None:
    """Garwood's interval of 3 events is 0.6187 to 8.7673."""
    assert mtbf_range(100, 3) == (pytest.approx(100 / 8.7673, rel=1e-4), pytest.approx(100 / 0.6187, rel=1e-4))
    assert mtbf_range(300, 0) == (pytest.approx(100, rel=2e-3), float("inf"))
    least, most = mtbf_range(1e6, 1000)  # exp() of minus that number is 0
    assert 930 < least < 1000 < most < 1070


def test_predicts_the_gain_of_another_interval() -> None:
    advice = advise(Saving(saves=10, blocked=10, blocked_cpu=2, cycle=3000, step=15), mtbf=6000, recovery=600)
    in_use, best = advice.in_use, advice.recommended[1]
    assert in_use.gained == 0
    assert in_use.steps == pytest.approx(2990 / 15)
    assert best.gained == pytest.approx(best.available - in_use.available)
    assert best.gained > 0.1
    assert advice.hidden.gained > 0
    assert advice.sharded is None
    shared = advise(Saving(10, 10, 2, 3000, 15, writers=4), mtbf=6000, recovery=600).sharded
    assert shared is not None
    assert (shared.cycle, shared.steps) == (3000 - 7.5, in_use.steps)
    assert shared.available == pytest.approx(available(3000 - 7.5, 6000, 600, 2.5))


def test_says_what_sharing_a_save_would_bring_if_one_rank_saves_for_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = replace(FIRST, rank=1, step={"compute": 0.75, "straggler": 0.25}, words={})
    ended(tmp_path, FIRST, waiting)
    assert main(command(tmp_path, "--mtbf", "1h", "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["saving"]["writers"] == 2
    assert report["advice"]["sharded"]["cycle"] == pytest.approx(1 - 0.125, rel=0.05)
    assert main(command(tmp_path, "--mtbf", "1h")) == 0
    assert "sharded: each rank saves its part" in capsys.readouterr().out
    ended(tmp_path / "shared", *both(FIRST))
    assert main(command(tmp_path / "shared", "--mtbf", "1h")) == 0
    assert "sharded" not in capsys.readouterr().out


# -- the command


def command(folder: Path, *words: str) -> list[str]:
    return ["goodput", "r1", "--dir", str(folder), *words]


def test_command_prints_parts_failures_and_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed(tmp_path, FIRST, SECOND)
    assert main(command(tmp_path, "--price", "2.5")) == 0
    printed = capsys.readouterr().out
    for said in (
        "2 attempts",
        "% of the time was progress (ETTR)",
        "saves     60, each blocks for 250 ms",
        "Young",
        "$",
    ):
        assert said in printed, printed
    assert main(command(tmp_path, "--json", "--mtbf", "100m", "--recovery", "10m", "--save-cost", "10s")) == 0
    advice = json.loads(capsys.readouterr().out)["advice"]
    assert [one["name"] for one in advice["recommended"]] == ["Young", "availability-optimal"]
    assert advice["recommended"][1]["cycle"] == pytest.approx(373.46, abs=0.01)
    assert advice["in_use"]["money_a_day"] is None, "no price was given"
    # A save that takes longer than the whole cycle did: the steps between saves stay as they were.
    assert (advice["in_use"]["steps"], advice["in_use"]["cycle"]) == pytest.approx((1.0, 10.75), rel=0.01)


def test_says_what_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended(tmp_path, FIRST)
    assert main(command(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert "failures  none in" in printed
    assert "no failure yet" in printed
    ended(tmp_path / "unsaved", Spec(steps=3, step={"compute": 0.5}))
    assert main(command(tmp_path / "unsaved", "--mtbf", "1h")) == 0
    assert "no save was seen" in capsys.readouterr().out
    ended(tmp_path / "behind", Spec(steps=3, step={"compute": 0.5}, strings={BACKGROUND_LABELS[0]: "save"}))
    assert main(command(tmp_path / "behind", "--mtbf", "1h")) == 0
    assert "saves were seen in another thread" in capsys.readouterr().out
    ended(tmp_path / "saving", Spec(steps=3, step={"checkpoint_write": 0.5}, words={"checkpoints": 3}))
    assert main(command(tmp_path / "saving", "--mtbf", "1h")) == 0
    assert "saves took all of the time" in capsys.readouterr().out


def test_a_given_time_counts_even_if_it_is_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed(tmp_path, FIRST, SECOND)
    assert main(command(tmp_path, "--json", "--recovery", "0")) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["recovery_seconds"], report["recovery_from"]) == (0.0, "given")
    with pytest.raises(SystemExit):
        main(command(tmp_path, "--mtbf", "0"))
    assert "'0' must be at least 1ms" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["empty", "stepless"])
def test_rejects_a_run_that_is_missing_or_has_no_step(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed(tmp_path / "stepless", Spec())
    assert main(command(tmp_path / folder)) == 1
    said = capsys.readouterr().err
    assert ("no ledger of run r1" if folder == "empty" else "r1 has finished a step yet") in said


# -- with other numbers of ranks


SMALL = Spec(rank=0, world_size=1, startup=1.0, steps=40, step={"compute": 0.1}, words={"samples": 40 * 8}, idle=60.0)
LARGE = replace(SMALL, attempt=1, world_size=2, step={"compute": 0.1, "data_read": 0.025}, idle=0.0)


def test_says_how_well_a_run_scales_whose_attempts_have_other_numbers_of_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(tmp_path, SMALL, LARGE, replace(LARGE, rank=1))
    assert main(command(tmp_path, "--json")) == 0
    [small, large] = json.loads(capsys.readouterr().out)["scaling"]
    assert (small["name"], large["name"], large["reference"]) == ("1 rank", "2 ranks", "1 rank")
    assert (small["efficiency"], large["efficiency"]) == (1.0, pytest.approx(0.8, abs=0.01))
    assert large["missing"]["storage"] == pytest.approx(0.2, abs=0.01)
    assert "data loaders counted" in large["assumed"]
    assert main(command(tmp_path)) == 0
    assert "storage took most of the rest" in capsys.readouterr().out


def test_says_how_well_a_run_scales_compared_with_another_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(tmp_path, replace(SMALL, run="small"), replace(LARGE, attempt=0), replace(LARGE, attempt=0, rank=1))
    assert main(command(tmp_path, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["scaling"] == []
    assert main(command(tmp_path, "--json", "--reference", "small")) == 0
    [_, large] = json.loads(capsys.readouterr().out)["scaling"]
    assert (large["reference"], large["efficiency"]) == ("small", pytest.approx(0.8, abs=0.01))
    for other, said in (("r1", "as many ranks"), ("missing", "no ledger of run missing")):
        assert main(command(tmp_path, "--reference", other)) == 1
        assert said in capsys.readouterr().err
