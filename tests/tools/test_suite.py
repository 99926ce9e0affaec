"""How the suite is run: which failures a test may have before it passes, and which failures end the suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[2] / "tools" / "suite.py"
TESTS = """
import pathlib, pytest

def fails(name, times=1):
    seen = pathlib.Path(name)
    failures = len(seen.read_text()) if seen.exists() else 0
    seen.write_text("x" * (failures + 1))
    assert failures >= times

@pytest.mark.xdist_group("a group-1")
@pytest.mark.parametrize("name", ["a@b", "c"])
def test_unsteady(name):
    fails(name, times=1 + (name == "c"))

def test_right():
    pass

@pytest.mark.alone
def test_alone():
    fails("alone")
"""


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ("", 0),
        ("def test_wrong(): assert False", 1),
        ("def test_wrong_too_often(): fails('often', 3)", 1),
        ("@pytest.mark.parametrize('x', range(9))\ndef test_many(x): fails(f'many{x}')", 1),
        ("import what_is_not_there", 2),
    ],
    ids=["unsteady", "wrong", "wrong too often", "too many", "broken"],
)
def test_runs_a_few_failed_tests_again_until_they_pass(tmp_path: Path, more: str, status: int) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(TESTS + more)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\n")
    done = subprocess.run([sys.executable, str(SUITE), "-q"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout
    unsteady = [line.rpartition("::")[2] for line in done.stdout.splitlines() if line.startswith("unsteady,")]
    assert unsteady == (["test_unsteady[a@b]", "test_unsteady[c]", "test_alone"] if not status else unsteady)
