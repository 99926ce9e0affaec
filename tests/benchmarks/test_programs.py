"""The independent clock of benchmarks/programs.py reads py-spy's samples by class."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs_clock import read
from programs_table import PROGRAMS

WAITS = (("data", r"^get_batch "), ("save", r"^save "))
PARTS = (("evaluation", r"^evaluate "),)
STACKS = {
    "import": ("<module> train.py", "_find_and_load <frozen importlib._bootstrap>", "<module> torch/optim/adam.py"),
    "model": ("<module> train.py", "forward torch/nn/modules/module.py"),
    "data": ("<module> train.py", "Reader.get_batch train.py"),
    "step": ("<module> train.py", "backward torch/autograd/graph.py"),
    "tested": ("<module> train.py", "evaluate train.py", "forward torch/nn/modules/module.py"),
    "test_data": ("<module> train.py", "evaluate train.py", "get_batch train.py"),
    "upload": ("<module> train.py", "upload train.py"),
}


def clock_file(folder: Path, *samples: str) -> Path:
    names = sorted({frame for stack in STACKS.values() for frame in stack})
    frames = [{"name": name, "file": name.partition(" ")[2]} for name in names]
    stacks = [[names.index(frame) for frame in STACKS[sample]] for sample in samples]
    threads = [
        {"name": 'Process 7 Thread 8 "pin"', "samples": stacks * 2, "weights": [1.0] * 2 * len(stacks)},
        {"name": 'Process 7 Thread 7 "MainThread"', "samples": stacks, "weights": [1.0] * len(stacks)},
    ]
    path = folder / "clock.json"
    path.write_text(json.dumps({"shared": {"frames": frames}, "profiles": threads}))
    return path


def test_the_clock_runs_from_the_first_batch_to_the_last_work_of_the_main_thread(tmp_path: Path) -> None:
    samples = ("import", "model", "data", "step", "step", "tested", "test_data", "upload", "step", "upload")
    (clock,) = read(clock_file(tmp_path, *samples), WAITS, PARTS)
    assert (clock.startup, clock.seconds) == (2.0, 7.0)
    expected = {"data": 2 / 7, "compute": 3 / 7, "evaluation": 1 / 7, "outside": 1 / 7}
    assert clock.classes == pytest.approx(expected)
    assert clock.outside[0][1] == pytest.approx(1 / 7)


def test_a_process_that_does_not_train_has_no_clock(tmp_path: Path) -> None:
    assert read(clock_file(tmp_path, "import", "model", "data"), WAITS, PARTS) == []


def test_each_program_has_its_script() -> None:
    jobs = Path(__file__).resolve().parents[2] / "benchmarks/programs_jobs"
    assert {program.command[0] for program in PROGRAMS.values()} | {"told.py"} == {
        one.name for one in jobs.glob("*.py")
    }
