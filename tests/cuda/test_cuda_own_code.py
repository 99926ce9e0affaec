"""What a loop's own code does while its device has no work, or works for it, as looks tell. They need 5 s, and know a
share of 40 % after 12 s to 3 points, so that the seconds of a kind may differ by three times as much."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from cudastandin.cases import ERROR, Case
from cudastandin.lab import Outcome, run
from cudastandin.own_code import BATCHES, TOKENS
from cudastandin.plan import Plan
from slow_mounts import forget, missing, throttled
from support_forks import Forks

from whyidle.torch_hooks.watcher import SHARE
from whyidle.verdict.words import LAUNCHES

pytestmark = [pytest.mark.alone, pytest.mark.long]

STEPS, SHORT_STEPS = 100, 1000
FORWARD_MS = 4 * Plan("single").forward_ms
SURE = 0.1
# loop -> the family of the verdict, and words of its headline
SAID = {
    "computes_between_steps": ("host", "the loop runs its own Python between phases"),
    "makes_batches": ("cpu", "the loop makes its batches itself: `get_batch` (own_code.py:"),
    "generates": ("compute", ""),
    "sleeps_in_forward": ("host", "the GPU has no work while the loop is in `slow` (own_code.py:"),
    "evaluates_and_reads": ("compute", ""),
    "updates_one_by_one": ("host", f"{LAUNCHES}, in the optimizer, at `updates_one_by_one` (own_code.py:"),
    "saves_itself": ("storage", "the loop saves in its own way, and is blocked there: `save_weights` (own_code.py:"),
}


FORWARDS = {"generates": TOKENS, "evaluates_and_reads": BATCHES}
"""loop -> the forward passes of an evaluation."""


def ran(forks: Forks, loop: str, folder: Path, **env: str) -> Outcome:
    plan = Plan("single", loop, steps=STEPS)
    if loop == "computes_between_steps":
        plan = replace(plan, steps=SHORT_STEPS, forward_ms=0.5)
    return run(forks, Case(loop, plan, 1, env=env), folder)


@pytest.mark.parametrize("loop", SAID)
def test_looks_tell_what_the_loop_does(cuda_forks: Forks, loop: str, tmp_path: Path) -> None:
    outcome = ran(cuda_forks, loop, tmp_path)
    [rank] = outcome.ranks
    family, words = SAID[loop]
    assert outcome.verdict["family"] == family, outcome.lines()
    assert words in outcome.verdict["summary"]
    assert rank.error < SURE, outcome.lines()
    if loop in FORWARDS:
        known = len(rank.told["beside"]) * FORWARDS[loop] * FORWARD_MS / 1e3
        assert rank.seconds["evaluation"] == pytest.approx(known, abs=ERROR * rank.wall), outcome.lines()
    [*launch] = [one["change"] for one in outcome.report["advice"] if one["id"] == "host.launch"]
    assert ["the optimizer" in one for one in launch] == [True] * (loop == "updates_one_by_one"), launch


@pytest.mark.parametrize("loop", ["updates_one_by_one", "computes_between_steps"])
def test_the_usual_share_of_a_core_is_enough(cuda_forks: Forks, loop: str, tmp_path: Path) -> None:
    """Other tests take 20 times as much."""
    outcome = ran(cuda_forks, loop, tmp_path, WHYIDLE_WATCHER_SHARE=str(SHARE))
    [rank] = outcome.ranks
    assert outcome.verdict["family"] == SAID[loop][0], outcome.lines()
    assert rank.error < 2 * SURE, outcome.lines()


def test_names_the_mount_from_which_the_loop_itself_reads(cuda_forks: Forks, tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    with throttled(tmp_path / "slow", 8_000_000) as slow:
        for number in range(STEPS):
            (slow.point / f"{number:03}.bin").write_bytes(os.urandom(1 << 20))
        forget(slow.point)
        env = {"SLOW_FOLDER": str(slow.point), "SLOW_GROUPS": slow.groups}
        case = Case("reads_itself", Plan("single", "reads_itself", steps=STEPS), 1, env=env)
        outcome = run(cuda_forks, case, tmp_path / "run")
    [rank] = outcome.ranks
    assert rank.error < SURE, outcome.lines()
    assert outcome.verdict["family"] == "storage"
    assert f"on reads from {slow.point} (ext4, loop" in outcome.verdict["summary"]
    [found] = outcome.report["mounts"]
    assert found["seconds"]["data"] == pytest.approx(rank.truth["data"], abs=SURE * rank.wall)
    assert found["bytes_per_second"] == pytest.approx(8_000_000, rel=0.1)
