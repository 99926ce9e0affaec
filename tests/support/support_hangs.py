"""Ranks that hang (scripts/hangs.py), and what `whyidle hang` says about them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support_forks import Forked, Forks
from support_training import command, kill_all, meeting, recorded, start, until

LIMIT_SECONDS = 60.0
HANG = [sys.executable, "-m", "whyidle.cli.main", "hang"]


@contextlib.contextmanager
def hanging(
    forks: Forks, kind: str, folder: Path, ranks: int, env: Mapping[str, str] | None = None, *, hooks: bool = True
) -> Iterator[list[Forked]]:
    """Ranks of which the last one hangs. They are killed at the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    together = {**meeting(ranks), **(env or {})}
    started: list[Forked] = []
    try:
        for rank in range(ranks):
            own = {**together, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(forks.start(("hangs.py", kind), folder, own, recorded=hooks))
        assert until(lambda: (folder / "hangs").exists(), 60), folder.joinpath("stderr").read_text()
        yield started
    finally:
        for one in started:
            one.kill()


@contextlib.contextmanager
def hanging_processes(kind: str, folder: Path, ranks: int, *, hooks: bool) -> Iterator[list[subprocess.Popen[str]]]:
    """The same, in processes that a launcher would have started: their environment says which rank they are."""
    words = command("hangs.py", kind)
    together = meeting(ranks) | {"LOCAL_WORLD_SIZE": str(ranks)}
    started: list[subprocess.Popen[str]] = []
    try:
        for rank in range(ranks):
            own = {**together, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(start(recorded(words) if hooks else words, folder, **own))
        assert until(lambda: (folder / "hangs").exists(), LIMIT_SECONDS)
        yield started
    finally:
        kill_all(folder)
        for one in started:
            one.communicate()


def dossier(folder: Path, *options: str, after: str = "1s") -> dict[str, Any]:
    """The dossier of the run whose ledgers are in ``folder``/ledgers."""
    words = [*HANG, "--json", "--dir", str(folder / "ledgers"), "--after", after, "--agent", "127.0.0.1:1"]
    done = subprocess.run(
        [*words, "--ras", "127.0.0.1:1", *options], capture_output=True, text=True, timeout=60, check=False
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def dossier_of_hang(folder: Path, *options: str, seconds: float = 60.0) -> dict[str, Any]:
    """Asks until it says that the run hangs."""
    deadline = time.monotonic() + seconds
    found = dossier(folder, *options)
    while not found["hung"] and time.monotonic() < deadline:
        time.sleep(0.5)
        found = dossier(folder, *options)
    return found
