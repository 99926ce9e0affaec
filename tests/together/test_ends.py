"""How runs end, with real processes: what the ledgers and the report say afterwards."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from support_long import long_unless
from support_training import command, ledgers_of, recorded, run, training, until

from whyidle.ledger.directory import read_directory, run_of
from whyidle.verdict.report import build_report


def report(folder: Path) -> dict[str, Any]:
    ledgers, problems = read_directory(str(folder / "ledgers"), steps=True)
    return build_report(run_of(ledgers[0]), ledgers, time.monotonic_ns(), problems)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("signal", r"data worker \d+ of rank 0 was killed by SIGKILL \(out of memory\?\)"),
        pytest.param(
            "elsewhere", r"data worker \d+ of rank 0 was killed by SIGKILL \(out of memory\?\)", marks=pytest.mark.long
        ),
        pytest.param("status", r"data worker \d+ of rank 0 ended with exit status 3", marks=pytest.mark.long),
    ],
)
def test_a_dead_data_worker_is_named(how: str, said: str, tmp_path: Path) -> None:
    words = command("dead_worker.py", how)
    plain = run(words, tmp_path / "plain")
    outcome = run(recorded(words), tmp_path / "with")
    assert outcome.returncode == plain.returncode == 1
    problems = report(tmp_path / "with")["problems"]
    assert re.fullmatch(r"rank 0 ended with an error: \w+Error at dead_worker\.py:\d+ <module>", problems[0])
    assert re.fullmatch(said, problems[1])


def test_the_last_seconds_of_a_killed_rank_are_in_the_account(tmp_path: Path) -> None:
    def sleeps() -> bool:
        rank = ledgers_of(tmp_path).get(0)
        return rank is not None and rank.steps == 20 and rank.idle_seconds > 2

    with training(recorded(command("ends.py", "sleeps")), tmp_path):
        assert until(sleeps)
        os.kill(ledgers_of(tmp_path)[0].visible_pid, signal.SIGKILL)
        assert until(lambda: not ledgers_of(tmp_path)[0].alive)
    got = report(tmp_path)
    assert got["state"] == "ended"
    assert re.fullmatch(
        r"rank 0 was ended by a signal, \d+\.\d s after its last step(, at ends.py:\d+ main)?: it may have finished"
        r"(, or hung there)?",
        got["remarks"][-1],
    )
    # No loader was seen, so the loop's own code counts as compute.
    assert sum(got["seconds"][cause] for cause in ("compute", "host", "host_blocked")) > 1.5
    assert got["unaccounted_seconds"] == pytest.approx(0, abs=1e-6)


def test_a_rank_that_a_signal_ends_after_its_training_function_has_ended(tmp_path: Path) -> None:
    assert run(recorded(command("ends.py", "returns")), tmp_path).returncode == -signal.SIGTERM
    got = report(tmp_path)
    assert (got["state"], got["steps"], got["problems"]) == ("ended", 20, [])
    assert not any("signal" in remark for remark in got["remarks"])


def test_a_rank_whose_training_thread_has_ended_has_returned(tmp_path: Path) -> None:
    with training(recorded(command("ends.py", "thread")), tmp_path):
        assert until(lambda: 0 in ledgers_of(tmp_path) and ledgers_of(tmp_path)[0].has_returned)
        os.kill(ledgers_of(tmp_path)[0].visible_pid, signal.SIGKILL)
        assert until(lambda: not ledgers_of(tmp_path)[0].alive)
    got = report(tmp_path)
    assert (got["state"], got["steps"], got["problems"]) == ("ended", 20, [])


def test_a_stopped_rank_has_no_heartbeat(tmp_path: Path) -> None:
    with training(recorded(command("ends.py", "sleeps")), tmp_path):
        assert until(lambda: 0 in ledgers_of(tmp_path) and ledgers_of(tmp_path)[0].steps > 0)
        pid = ledgers_of(tmp_path)[0].visible_pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.5)
        before = ledgers_of(tmp_path)[0].heartbeat_ns
        time.sleep(1.0)
        assert ledgers_of(tmp_path)[0].heartbeat_ns == before
        os.kill(pid, signal.SIGKILL)
        assert until(lambda: not ledgers_of(tmp_path)[0].alive)
    assert report(tmp_path)["problems"] == ["rank 0 was killed, or crashed"]


@pytest.mark.parametrize("ranks", long_unless([2], [2, 4]))
def test_a_collective_that_a_rank_never_entered_is_named_after_the_end(ranks: int, tmp_path: Path) -> None:
    """Odd ranks leave the loop after fewer steps, and the others wait for them until gloo gives up."""
    outcome = run(recorded(command("ends.py", "uneven", ranks=ranks)), tmp_path)
    assert outcome.returncode == 1
    got = report(tmp_path)
    [found] = got["never_entered"]
    assert (sorted(found["ranks"]), sorted(found["waiting"])) == (
        [*range(1, ranks, 2)],
        [*range(0, ranks, 2)],
    )
    assert got["verdict"]["family"] in ("host", "straggler")  # the loop has no loader: the sleep may count as compute
    assert any("in a collective that rank" in said for said in got["verdict"]["evidence"])
    assert "Rank 1 was the first" not in " ".join(got["problems"])


@pytest.mark.long
def test_early_ranks_that_wait_after_their_last_step_wait_for_the_late_ones(tmp_path: Path) -> None:
    outcome = run(recorded(command("ends.py", "early", ranks=4)), tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    got = report(tmp_path)
    assert got["seconds"]["collective"] < 0.1 * got["seconds"]["straggler"]
    assert {late["rank"] for late in got["verdict"]["late_ranks"]} <= {2, 3}
    assert got["verdict"]["summary"].endswith("compute takes longer than on the others, after the last step") or (
        got["verdict"]["family"] != "communication"
    )
