"""Formulas, hooks and network interfaces agree on the bytes of a real job (benchmarks/traffic.py, with two ranks)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "traffic.py"
TOLERANCE = 0.02
NAMESPACE = "whyidle-t-try"


def missing() -> str | None:
    if os.geteuid() or not shutil.which("ip"):
        return "needs root and ip"
    made = subprocess.run(["ip", "netns", "add", NAMESPACE], capture_output=True, text=True)
    if made.returncode:
        return f"needs the right to make network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", NAMESPACE], check=True)
    return None


@pytest.mark.long
def test_two_ranks_move_what_the_formula_says(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    out = tmp_path / "found.json"
    words = [sys.executable, str(BENCHMARK), "--only", "DDP, 2 ranks", "--steps", "5", "--json", str(out)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(out.read_text())
    assert found["steps"] == 5
    assert found["hooks"] == found["formula"]
    assert 0 <= found["interfaces_off"] < TOLERANCE
