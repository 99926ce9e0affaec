"""Which framework runs the loop, and how its program names its options. Only names are recorded."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
from support_forks import Forks
from support_training import gather

from whyidle.ledger.programs import CONCEPT_OF, FRAMEWORKS, OPTIONS_BYTES, SUBCLASSES, concept_of, joined, options_in
from whyidle.ledger.reader import Ledger
from whyidle.torch_hooks.program import framework


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["-j", "4"], ["-j"]),
        (["-j4", "--lr=1"], ["-j"]),
        (["--num-workers=4", "--num_workers", "4"], ["--num-workers", "--num_workers"]),
        (["data.num_workers=4", "+data.prefetch_factor=2"], ["data.num_workers", "data.prefetch_factor"]),
        (["--cfg-options", "train_dataloader.num_workers=4"], ["train_dataloader.num_workers"]),
        (["--dataloader.num_workers", "2"], ["--dataloader.num_workers"]),
        (["num_workers", "/data/num_workers=3", "-w", "--", "-", "", "--=", "=", "a b=num_workers"], []),
        (["--token=--num_workers=1", "--name=workers", "x\n--workers"], []),
        (["-J", "--J"], []),
    ],
)
def test_finds_options_by_their_names(words: list[str], found: list[str]) -> None:
    assert list(options_in(words)) == found


def test_keeps_as_many_options_as_a_ledger_holds() -> None:
    many = [f"{'x' * 30}{number}.num_workers" for number in range(20)]
    assert joined(["-j", *many, "-j"]).split() == ["-j", *many[: (OPTIONS_BYTES - 4) // 44]]
    assert joined([]) == ""


def test_every_name_of_the_table_has_one_meaning() -> None:
    assert all(name == "j" or concept_of(f"--{name.replace('_', '-')}") == CONCEPT_OF[name] for name in CONCEPT_OF)
    assert SUBCLASSES.keys() <= FRAMEWORKS.keys()


def called_from(*modules: str) -> str:
    """What runs a loop that the last of these modules calls, which the one before it calls, …"""
    code = "def call(rest):\n    return rest[0](rest[1:]) if rest else look()"
    functions = []
    for name in modules:
        module = types.ModuleType(name)
        vars(module)["look"] = lambda: framework(sys._getframe())
        exec(code, vars(module))
        functions.append(vars(module)["call"])
    return str(functions[0](functions[1:]))


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        (("train", "lightning.pytorch.trainer.trainer"), "lightning"),
        (("train", "pytorch_lightning.trainer"), "lightning"),
        (("hydra.main", "train", "lightning.pytorch.loops"), "lightning"),
        (("hydra.main", "train"), "hydra"),
        (("train", "transformers.trainer", "accelerate.data_loader"), "transformers"),
        (("trl.scripts.sft", "transformers.trainer"), "trl"),
        (("train", "lightning_of_mine"), ""),
        (("train",), ""),
    ],
)
def test_the_stack_tells_which_framework_runs_the_loop(modules: tuple[str, ...], found: str) -> None:
    assert called_from(*modules) == found


@pytest.mark.parametrize(
    ("imported", "found"),
    [
        ("trl.trainer.dpo_trainer", "trl.dpo"),
        ("trl.trainer.grpo_trainer", "trl"),
        ("sentence_transformers.trainer", "sentence_transformers"),
        ("lightning.pytorch", "transformers"),
    ],
)
def test_the_loop_of_a_subclass_is_that_of_its_framework(
    imported: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, imported, types.ModuleType(imported))
    assert called_from("train", "transformers.trainer") == found


def told(forks: Forks, folder: Path, *words: str, steps: int = 3) -> Ledger:
    process = forks.start(("program.py", *words), folder)
    code = process.wait()
    stdout, stderr = (folder.joinpath(stream).read_text() for stream in ("stdout", "stderr"))
    assert code == 0, stderr
    [ledger] = gather(folder, code, stdout, stderr).ledgers
    assert (ledger.steps, ledger.faults) == (steps, 0)
    return ledger


def test_a_ledger_has_the_framework_and_the_names_of_options(forks: Forks, tmp_path: Path) -> None:
    """The options of the command line come first, then those that the parser knows."""
    ledger = told(forks, tmp_path, "--log-interval", "5", "--secret=hunter2", "data.num_workers=3", "token=hunter2")
    assert ledger.strings["framework"] == "lightning"
    assert ledger.strings["options"] == "--log-interval data.num_workers --loader-workers --workers -j"
    for file in (tmp_path / "ledgers").iterdir():
        assert b"hunter2" not in file.read_bytes()


def test_a_loop_by_hand_has_no_framework_even_if_one_was_imported(forks: Forks, tmp_path: Path) -> None:
    assert told(forks, tmp_path, "--secret", "by hand").strings["framework"] == ""


@pytest.mark.parametrize(
    ("words", "starts"),
    [((), (4, 8)), (("-j", "1"), (4, 8)), (("-j", "1", "--keep"), (0, 0))],
    ids=["no workers", "a worker", "a worker that is kept"],
)
def test_counts_how_often_the_loaders_of_a_training_start(
    words: tuple[str, ...], starts: tuple[int, int], forks: Forks, tmp_path: Path
) -> None:
    """Each of four epochs trains and evaluates."""
    ledger = told(forks, tmp_path, "--epochs", "4", *words, steps=16)
    assert tuple(ledger.words["loader_starts"]) == starts


@pytest.mark.parametrize(("words", "iterables", "frozen"), [((), 0, 0), (("--stream",), 2, 1)], ids=["usual", "stream"])
def test_tells_whether_samples_are_streamed_and_objects_frozen(
    words: tuple[str, ...], iterables: int, frozen: int, forks: Forks, tmp_path: Path
) -> None:
    """Each of two epochs trains and evaluates, and collects garbage."""
    ledger = told(forks, tmp_path, "--epochs", "2", *words, steps=8)
    assert (ledger.words["loader_iterables"], ledger.words["gc_frozen"]) == ((iterables,), (frozen,))
    assert ledger.words["gc_asked"][0] == 2
    assert 0 < ledger.words["gc_asked_ns"][0] <= 1.1 * ledger.cause_ns["host_gc"]
