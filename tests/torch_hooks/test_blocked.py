"""Time outside all brackets is compute or host, unless the loop was blocked: real loops that know for how long."""

from __future__ import annotations

import json

import pytest
from support_forks import Forks
from support_quiet import wait_for_quiet
from support_training import Outcome, gather

pytestmark = pytest.mark.alone


TOGETHER = (("sleeps", "computes"), ("sleeps_shortly", "logs"), ("threads_come_and_go",), ("locked",), ("rolls_out",))
"""Loops that leave each other a CPU."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> dict[str, Outcome]:
    folder, found = tmp_path_factory.mktemp("blocked"), {}
    for names in TOGETHER:
        wait_for_quiet()
        started = {name: forks.start(("blocked.py", name), folder / name) for name in names}
        for name, process in started.items():
            code = process.wait()
            stdout, stderr = ((folder / name / stream).read_text() for stream in ("stdout", "stderr"))
            found[name] = gather(folder / name, code, stdout, stderr)
    return found


@pytest.mark.parametrize("name", [name for names in TOGETHER for name in names])
def test_blocked_time_is_what_the_loop_measured(name: str, outcomes: dict[str, Outcome]) -> None:
    done = outcomes[name]
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    [ledger] = done.ledgers
    blocked = ledger.cause_ns["host_blocked"]
    assert abs(blocked - told["blocked"]) < 0.1 * told["wall"] + told["stolen"], (blocked, told)
    assert all(ns >= 0 for step in ledger.ring for ns in step.causes)
    if name == "logs":
        assert ledger.cause_ns["host"] < told["busy"] + 0.1 * told["wall"] + told["stolen"]
    # Of the loop's own time the training thread had a CPU for what the loop itself has measured.
    assert ledger.thread_cpu_ns < told["busy"] + 0.1 * told["wall"] + told["stolen"]


def test_a_rollout_that_waits_loses_its_part_of_the_blocked_time(outcomes: dict[str, Outcome]) -> None:
    told = json.loads(outcomes["rolls_out"].stdout)
    [ledger] = outcomes["rolls_out"].ledgers
    lost = told["rollout"] + told["blocked_rollout"] - ledger.cause_ns["rollout"]
    its_part = ledger.cause_ns["host_blocked"] * told["blocked_rollout"] / told["blocked"]
    assert abs(lost - its_part) < 0.1 * told["wall"] + told["stolen"], (lost, its_part, told)


def test_waits_for_python_s_lock_name_the_thread_that_holds_it(outcomes: dict[str, Outcome]) -> None:
    [ledger] = outcomes["locked"].ledgers
    assert ledger.lock_looks > 0
    assert 0 < ledger.lock_ns <= ledger.cause_ns["host_blocked"]
    assert ledger.strings["lock_thread"] == "counts"


@pytest.mark.parametrize("name", ["sleeps", "threads_come_and_go"])
def test_a_loop_that_sleeps_does_not_wait_for_python_s_lock(name: str, outcomes: dict[str, Outcome]) -> None:
    [ledger] = outcomes[name].ledgers
    assert ledger.lock_ns < 0.1 * ledger.cause_ns["host_blocked"]
