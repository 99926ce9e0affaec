"""The example scripts: they train on this machine, and have a verdict at the end."""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import support_training
import torch
from support_forks import Forks
from support_sites import TORCH_ABORTED, report
from support_training import SCRIPTS, Outcome

import whyidle

ROOT = Path(whyidle.__file__).parent
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent

Map = dict[str, Any]


def train(words: list[str], folder: Path) -> Outcome:
    """Runs a shell script with this environment's commands first on PATH."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    for attempt in range(3):
        outcome = support_training.run(words, folder / str(attempt), PATH=path)
        if TORCH_ABORTED not in outcome.stderr:
            break
    assert outcome.returncode == 0, outcome.stderr
    return outcome


def train_forked(forks: Forks, folder: Path, name: str, *words: str, ranks: int = 0) -> Outcome:
    """Runs an example that calls attach() itself, as Python or, for several ranks, torchrun would."""
    outcome, codes = forks.run((str(EXAMPLES / name), *words), folder, ranks, recorded=False)
    assert not any(codes), outcome.stderr
    return outcome


def of(outcome: Outcome) -> Map:
    return report(Path(outcome.ledgers[0].path).parent)


# -- scripts


@pytest.mark.long
def test_runs_the_torchrun_script(tmp_path: Path) -> None:
    outcome = train([str(EXAMPLES / "train_ddp.sh"), "--steps", "40", "--batch", "8"], tmp_path)
    assert sorted(ledger.rank for ledger in outcome.ledgers) == [0, 1]
    assert {ledger.steps for ledger in outcome.ledgers} == {40}
    assert all(ledger.hook_states["ddp"] == "active" for ledger in outcome.ledgers)
    assert of(outcome)["verdict"]["family"]


def test_runs_the_fsdp2_script(tmp_path: Path, forks: Forks) -> None:
    checkpoint = tmp_path / "checkpoint"
    words = ("--steps", "6", "--batch", "2", "--evaluate-every", "3", "--checkpoint", str(checkpoint))
    outcome = train_forked(forks, tmp_path, "train_fsdp2.py", *words, ranks=2)
    assert [re.findall(r"step \d+", line) for line in outcome.stdout.splitlines()] == [["step 3"], ["step 6"]]
    assert {ledger.steps for ledger in outcome.ledgers} == {6}
    assert all(ledger.cause_ns["checkpoint_write"] > 0 for ledger in outcome.ledgers)
    assert list(checkpoint.glob("*.distcp"))
    assert of(outcome)["verdict"]["family"]


def test_runs_the_script_that_adapts_its_workers(tmp_path: Path, forks: Forks) -> None:
    outcome = train_forked(forks, tmp_path, "adapt_workers.py", "--epochs", "2", "--samples", "60")
    first, second = (int(number) for number in re.findall(r"workers (\d+)", outcome.stdout))
    (ledger,) = outcome.ledgers
    busy = ledger.cause_ns["data_queue"] > 0.1 * ledger.cause_ns["data_read"]  # more workers would wait for a CPU, too
    assert first == 1
    assert second > first or busy


SLOWED = ("--every", "8", "--width", "64", "--most", "2")
BATCHES = {"transfers": 40, "compute": 24}
"""The first decisions may come before the ranks compare their waits, so a batch grows later."""


def train_slowed(forks: Forks, folder: Path, part: str, name: str, *words: str) -> Outcome:
    """Runs an example on two ranks. A part of each step takes at least 40 ms."""
    script = str(SCRIPTS / "slowed.py")
    words = (str(EXAMPLES / name), *SLOWED, f"--batches={BATCHES[part]}", *words)
    outcome, codes = forks.run((script, part, "0.04", *words), folder, 2, recorded=False)
    assert not any(codes), outcome.stderr
    return outcome


@pytest.mark.parametrize(("part", "most"), [("transfers", 2), ("compute", 1)])
def test_accumulates_where_transfers_take_long(part: str, most: int, tmp_path: Path, forks: Forks) -> None:
    outcome = train_slowed(forks, tmp_path, part, "adapt_accumulation.py")
    said = [int(number) for number in re.findall(r"accumulated (\d+)", outcome.stdout)]
    assert (len(said), said[0], said[-1]) == (BATCHES[part] // 8, 1, most)
    assert {ledger.steps for ledger in outcome.ledgers} == {sum(8 // number for number in said)}


# -- a batch that grows


def test_the_batch_stays_as_it_is_unless_it_is_asked_to_grow(tmp_path: Path, forks: Forks) -> None:
    outcome = train_slowed(forks, tmp_path, "transfers", "adapt_batch.py")
    said = re.findall(r"batch \d+ times (\d+) rate (\S+)", outcome.stdout)
    assert said == [("1", "0.0200")] * 5
    assert {ledger.steps for ledger in outcome.ledgers} == {40}


@pytest.mark.parametrize(("part", "most", "rate"), [("transfers", 2, "0.0400"), ("compute", 1, "0.0200")])
def test_a_batch_that_may_grow_grows_where_transfers_take_long(
    part: str, most: int, rate: str, tmp_path: Path, forks: Forks
) -> None:
    """It takes each sample once, whatever its size."""
    outcome = train_slowed(forks, tmp_path, part, "adapt_batch.py", "--grow", "linear", "--warmup", "2")
    said = re.findall(r"times (\d+) rate (\S+)", outcome.stdout)
    times = [int(number) for number, _ in said]
    assert (len(times), times[0], said[-1]) == (BATCHES[part] // 8, 1, (str(most), rate))
    assert {ledger.steps for ledger in outcome.ledgers} == {sum(8 // number for number in times)}


@pytest.mark.parametrize(("rule", "rates"), [("linear", [0.1, 0.2, 0.4]), ("sqrt", [0.1, 0.1414, 0.2])])
def test_the_rate_rises_to_what_the_rule_says(rule: str, rates: list[float]) -> None:
    example = runpy.run_path(str(EXAMPLES / "adapt_batch.py"))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    rate = example["Rate"](optimizer, 4)
    assert rate.now() == rates[0]
    for times, before, after in zip((2, 4), rates, rates[1:], strict=False):
        rate.grown(example["RULES"][rule](times))
        seen = []
        for _ in range(6):
            rate.step()
            seen.append(optimizer.param_groups[0]["lr"])
        assert seen == pytest.approx(
            [before + part * (after - before) for part in (0.25, 0.5, 0.75, 1, 1, 1)], rel=1e-3
        )


# -- the page


def test_every_example_is_explained() -> None:
    page = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        assert path.name == "README.md" or path.name.startswith((".", "__")) or f"]({path.name}" in page, path.name
