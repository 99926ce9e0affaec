"""The tests that depend on ages pass on a machine that has just started, and on one with a long uptime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support_long import long_unless
from support_sites import clean_env
from support_uptime import since_start

TESTS = Path(__file__).parents[1]
UPTIMES = {"30 seconds": 30.0, "100 days": 100 * 86400.0}


@pytest.mark.parametrize("uptime", long_unless([30.0], UPTIMES.values()), ids=list(UPTIMES))
def test_ages_are_right_at_any_uptime(uptime: float, tmp_path: Path) -> None:
    """They have the mark `ages`. Files without the mark are not imported."""
    others = [path for path in sorted(TESTS.rglob("test_*.py")) if path != Path(__file__)]
    files = [str(path) for path in others if "pytest.mark.ages" in path.read_text()]
    pytest_words = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "ages and not long",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
    ]
    words = since_start(uptime, *pytest_words, f"--basetemp={tmp_path / 'inner'}", *files)
    done = subprocess.run(
        words,
        cwd=TESTS.parent,
        env=clean_env(),  # not the process of other tests that forks, whose uptime is another one
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
