"""Time in loggers is `logging`, by their names or by `whyidle.phase("logging")`. The script's own clock decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support_forks import Forks


def run(forks: Forks, folder: Path, *words: str) -> dict[str, Any]:
    done, _ = forks.run(("logs.py", *words), folder, recorded=False)
    assert done.returncode == 0, done.stderr
    assert "whyidle:" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_time_in_loggers_is_logging_wherever_the_loop_calls_them(tmp_path: Path, forks: Forks) -> None:
    told, plain = run(forks, tmp_path / "recorded"), run(forks, tmp_path / "plain", "--plain")
    assert told["loss"] == plain["loss"]
    assert (told["faults"], told["state"]) == (0, "active")
    causes = told["causes"]
    # The first step is startup, and the script's own calls between two brackets are not in them.
    assert 0.85 * told["logging"] < causes["logging"] < 1.01 * told["logging"]
    # It sleeps there, which a CPU rank sees.
    assert 0.85 * told["evaluated"] < causes["evaluation"] + causes["host_blocked"]
