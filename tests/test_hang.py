"""A hang shows while it lasts: in the ledgers, and in what the agent says over HTTP."""

from __future__ import annotations

from pathlib import Path

from support_training import (
    agent,
    assert_every_second_is_in_one_place,
    command,
    gather,
    ledgers_of,
    metrics,
    recorded,
    training,
    until,
)


def test_a_rank_that_sleeps_before_a_collective_is_missed_by_the_others(tmp_path: Path) -> None:
    def waits(seconds: float) -> bool:
        rank = ledgers_of(tmp_path).get(0)
        return rank is not None and rank.phase_name == "collective" and rank.idle_seconds > seconds

    with training(recorded(command("late.py", ranks=2)), tmp_path) as process, agent(tmp_path / "ledgers") as (_, url):
        assert until(lambda: (tmp_path / "sleeps").exists(), 90)
        assert until(lambda: waits(1.0)), "the wait grows"
        waiting, late = ledgers_of(tmp_path)[0], ledgers_of(tmp_path)[1]
        assert waiting.alive
        assert late.alive
        assert late.phase_name != "collective"
        assert late.collectives < waiting.collectives
        assert until(lambda: waits(2.0)), "and goes on growing"

        ((labels, seconds),) = [(at, s) for at, s in metrics(url, "whyidle_phase_open_seconds") if at["rank"] == "0"]
        assert labels["phase"] == "collective"
        assert seconds > 2.0
        assert until(
            lambda: any(at["rank"] == "1" for at, s in metrics(url, "whyidle_collective_missing_seconds") if s)
        )
        assert not [at for at, s in metrics(url, "whyidle_collective_missing_seconds") if s and at["rank"] == "0"]

        (tmp_path / "go").touch()
        process.wait(90)
        outcome = gather(tmp_path, process.returncode)
    assert outcome.returncode == 0
    for rank in (0, 1):
        told, ledger = outcome.rank(rank)
        assert_every_second_is_in_one_place(told, ledger)
        assert ledger.steps == told.counts["steps"]
    # It was rank 0 that waited: for that long, and in that one step.
    _, ledger = outcome.rank(0)
    waits_ns = ledger.cause_ns["collective"] + ledger.cause_ns["straggler"] + ledger.cause_ns["network"]
    assert waits_ns > 2_000_000_000
