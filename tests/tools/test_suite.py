"""How the suite itself is run: what a second look forgives, and what it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[2] / "tools" / "suite.py"
TESTS = """
import pathlib, pytest

def fails_once(name):
    seen = pathlib.Path(name)
    if not seen.exists():
        seen.touch()
        raise AssertionError("unsteady")

@pytest.mark.xdist_group("some-group")
@pytest.mark.parametrize("name", ["a@b", "c"])
def test_unsteady(name):
    fails_once(name)

def test_right():
    pass

@pytest.mark.alone
def test_alone():
    fails_once("alone")
"""


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ("", 0),
        ("def test_wrong(): assert False", 1),
        ("@pytest.mark.parametrize('x', range(4))\ndef test_many(x): fails_once(f'many{x}')", 1),
        ("import what_is_not_there", 2),
    ],
    ids=["unsteady", "wrong", "too many", "broken"],
)
def test_a_second_look_is_for_few_and_must_pass(tmp_path: Path, more: str, status: int) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(TESTS + more)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\n")
    done = subprocess.run([sys.executable, str(SUITE), "-q"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout
    unsteady = [line.rpartition("::")[2] for line in done.stdout.splitlines() if line.startswith("unsteady,")]
    assert unsteady == (["test_unsteady[a@b]", "test_unsteady[c]", "test_alone"] if not status else unsteady)
