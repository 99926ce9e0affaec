"""Checkpoints of frameworks: each is one bracket, which takes as long as the framework's own clock says.

In every run of the tests, stand-ins with the frameworks' names and signatures are used. With the frameworks themselves:

    python3 -m venv frameworks && frameworks/bin/pip install torch transformers accelerate lightning pytorch-lightning
    WHYIDLE_TEST_FRAMEWORKS=frameworks/bin/python make test
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import types
from pathlib import Path

import pytest
from support_forks import Forks
from support_quiet import wait_for_quiet
from support_sites import report
from support_training import SCRIPTS, environment, recorded

from whyidle.ledger.directory import read_directory
from whyidle.ledger.reader import Ledger
from whyidle.torch_hooks.hooks import INSTALL
from whyidle.torch_hooks.session import Session

SAVE, LOAD = ("checkpoint_write", "checkpoint_cpu"), ("checkpoint_read",)
DATA = ("data_read", "data_cpu", "data_queue", "data_handoff")
HOOKS = ("transformers", "accelerate", "lightning", "torchtitan", "deepspeed", "composer", "ray", "megatron")
FRAMEWORKS = os.environ.get("WHYIDLE_TEST_FRAMEWORKS", "")


def spent(ledger: Ledger, causes: tuple[str, ...]) -> int:
    return sum(ledger.cause_ns[cause] for cause in causes)


def ranks_of(forks: Forks, words: tuple[str, ...], folder: Path, ranks: int = 0) -> tuple[str, list[Ledger]]:
    """Runs a script -> what it printed, and its ledgers by rank."""
    done, codes = forks.run(words, folder, ranks)
    assert not any(codes), done.stderr
    assert "whyidle:" not in done.stderr
    return done.stdout, sorted(done.ledgers, key=lambda one: one.rank)


def test_a_framework_checkpoint_counts_once_with_all_its_files(tmp_path: Path, forks: Forks) -> None:
    _, [ledger] = ranks_of(forks, ("whole_saves.py",), tmp_path)
    told = json.loads((tmp_path / "told-0").read_text())
    assert {ledger.hook_states[hook] for hook in HOOKS} == {"active"}
    assert ledger.words["checkpoints"] == (told["saves"], told["loads"]) == (12, 5)
    assert ledger.words["checkpoint_bytes"] == (told["save_bytes"], told["load_bytes"])
    for causes, kind in ((SAVE, "save"), (LOAD, "load")):
        assert abs(spent(ledger, causes) - told[f"{kind}_ns"]) < 20_000_000 + 0.02 * told[f"{kind}_ns"]
    blocked = told["save_ns"] - told["save_cpu_ns"]
    assert told["save_cpu_ns"] * 0.95 < ledger.cause_ns["checkpoint_cpu"]
    assert 0.25e9 < ledger.cause_ns["checkpoint_write"] < blocked + 20_000_000
    assert (ledger.faults, told["parameters"]) == (0, 3)


def test_a_barrier_in_a_checkpoint_is_a_wait_for_the_rank_that_writes(tmp_path: Path, forks: Forks) -> None:
    _, ledgers = ranks_of(forks, ("whole_saves.py", "saves"), tmp_path, 2)
    writer, waiter = (json.loads((tmp_path / f"told-{rank}").read_text()) for rank in (0, 1))
    assert [ledger.words["checkpoints"][0] for ledger in ledgers] == [10, 0]
    assert abs(spent(ledgers[0], SAVE) - (writer["save_ns"] - writer["barrier_ns"])) < 0.1 * writer["save_ns"]
    # The other rank's own computation is split off from the wait, although the wait follows it.
    own = waiter["save_ns"] - waiter["barrier_ns"]
    assert abs(spent(ledgers[1], SAVE) - own) < 0.1 * waiter["save_ns"]
    assert ledgers[1].cause_ns["checkpoint_cpu"] > 0.8 * waiter["save_cpu_ns"]
    verdict = report(tmp_path / "ledgers")["verdict"]
    evidence = " ".join(verdict["evidence"])
    assert "for rank 0, which was late by its checkpoints" in evidence, verdict
    waited = float(evidence.split("rank 1 waited ")[1].split()[0])
    assert abs(waited - waiter["barrier_ns"] / 1e9) < 0.1 * waiter["barrier_ns"] / 1e9 + 0.1


def test_ranks_wait_while_one_evaluates(tmp_path: Path, forks: Forks) -> None:
    _, ledgers = ranks_of(forks, ("whole_saves.py", "evaluates"), tmp_path, 2)
    told = json.loads((tmp_path / "told-0").read_text())
    assert ledgers[0].words["eval_batches"][0] == 30
    assert abs(ledgers[0].cause_ns["evaluation"] - told["evaluation_ns"]) < 0.1 * told["evaluation_ns"]
    assert ledgers[1].cause_ns["evaluation"] < 0.01 * told["evaluation_ns"]
    verdict = report(tmp_path / "ledgers")["verdict"]
    evidence = " ".join(verdict["evidence"])
    assert "for rank 0, which was late by its evaluation" in evidence, verdict
    waited = float(evidence.split("rank 1 waited ")[1].split()[0])
    assert abs(waited - told["evaluation_ns"] / 1e9) < 0.2 * told["evaluation_ns"] / 1e9
    assert (verdict["family"], verdict["late_ranks"][0]["rank"]) == ("straggler", 0)


def test_an_update_in_several_parts_is_the_end_of_one_step(tmp_path: Path, forks: Forks) -> None:
    _, [ledger] = ranks_of(forks, ("whole_saves.py", "updates"), tmp_path)
    told = json.loads((tmp_path / "told-0").read_text())
    assert (ledger.steps, ledger.hook_states["deepspeed"]) == (told["steps"], "active")
    assert spent(ledger, ("compute", "compute_queue")) > 0.95 * told["update_ns"]
    assert spent(ledger, ("host", "host_blocked")) < 0.05 * told["update_ns"]


def test_detach_restores_every_method() -> None:
    class Trainer:
        def save_checkpoint(self) -> None:
            """Not every framework has restores."""

    class Inherits(Trainer):
        pass

    name = "pytorch_lightning.trainer.trainer"
    original = Trainer.save_checkpoint
    module = types.ModuleType(name)
    module.Trainer = Inherits  # type: ignore[attr-defined]
    sys.modules[name] = module
    try:
        session = Session()
        undo = INSTALL["lightning"](session)
        assert Inherits.save_checkpoint is not original
        assert session.states["lightning"] == "active"
        undo()
        assert Inherits.save_checkpoint is original
        assert "save_checkpoint" not in vars(Inherits)
    finally:
        del sys.modules[name]


@pytest.mark.alone
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not FRAMEWORKS, reason="needs the frameworks, in another environment: WHYIDLE_TEST_FRAMEWORKS=its python"
)
@pytest.mark.parametrize("name", ["transformers", "accelerate", "lightning", "pytorch_lightning"])
def test_agrees_with_the_timers_of_the_framework(name: str, tmp_path: Path) -> None:
    """Batches, steps up to the optimizer's, and checkpoints agree within 2 points of the wall time of the training."""
    wait_for_quiet()
    words = [FRAMEWORKS, str(SCRIPTS / "frameworks.py"), name]
    env = environment(tmp_path, HF_HUB_OFFLINE="1")
    done = subprocess.run(recorded(words), env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "whyidle:" not in done.stderr
    ([ledger], problems) = read_directory(str(tmp_path / "ledgers"), steps=True)
    assert not problems
    told = json.loads(done.stdout.splitlines()[-1])
    ours = {"batch": spent(ledger, DATA), "step": spent(ledger, ("compute",)), "checkpoint": spent(ledger, SAVE)}
    for what, ns in ours.items():
        assert abs(ns - told[what]) < 0.02 * told["wall"], (what, ours, told)
        print(f"{name} {what}: {told[what] / 1e6:.0f} ms by its own timer, {ns / 1e6:.0f} ms in the ledger")
    assert (ledger.steps, ledger.words["checkpoints"][0], ledger.checkpoint_step) == (told["steps"], told["saves"], 48)
    assert ledger.words["checkpoint_bytes"][0] > 6 * 12_000_000
    assert ledger.faults == 0


def _writes_are_counted(folder: Path) -> bool:
    """Not on a tmpfs."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_oublock
    (folder / "probe").write_bytes(bytes(1 << 20))
    return resource.getrusage(resource.RUSAGE_THREAD).ru_oublock >= before + 2048


@pytest.mark.parametrize("how", ["plain", "bracketed", "sent"])
def test_records_a_checkpoint_written_by_hand(how: str, tmp_path: Path, forks: Forks) -> None:
    """Without fsync it costs CPU time, which is host. The report says that files were written meanwhile."""
    if not _writes_are_counted(tmp_path):
        pytest.skip("needs a folder for temporary files on a disk")
    stdout, [ledger] = ranks_of(forks, ("by_hand.py", str(tmp_path / "saved"), how), tmp_path)
    told = json.loads(stdout)
    size = told["saves"] * (128 << 20)
    evidence = " ".join(report(tmp_path / "ledgers")["verdict"]["evidence"])
    if how == "plain":
        assert size <= ledger.words["host_write_bytes"][0] < size + (1 << 20)
        host = spent(ledger, ("host", "host_blocked", "compute_queue"))
        assert 0.9 * told["wrote"] < ledger.words["host_write_ns"][0] < host + 20_000_000
        assert "of host time the loop itself wrote 0.4 GB to files" in evidence
    else:
        assert ledger.words["host_write_bytes"] == (0,)
        assert "to files" not in evidence
    if how == "bracketed":
        assert abs(spent(ledger, SAVE) - told["wrote"]) < 20_000_000 + told["wrote"] / 10
        assert abs(ledger.cause_ns["checkpoint_cpu"] - told["busy"]) < 20_000_000 + told["busy"] / 10, told
