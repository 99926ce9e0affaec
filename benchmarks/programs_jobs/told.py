"""What a program of benchmarks/programs.py tells of itself: one line of JSON, by its own counts and its own clock."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MARK = "TOLD "
FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
"""Where the program may write."""
GIVEN = dict(one.split("=", 1) for one in sys.argv[2:] if "=" in one)
"""The arguments NAME=VALUE after it."""


def number(name: str, usual: float) -> float:
    return float(GIVEN.get(name, usual))


def injected_wait(seconds: float) -> None:
    """A fault. The clock finds it in the stack by the name of this function."""
    if seconds:
        time.sleep(seconds)


def late_wait(seconds: float) -> None:
    """The same, of a rank that is late."""
    if seconds:
        time.sleep(seconds)


@contextmanager
def training() -> Iterator[dict[str, Any]]:
    """Put around the training. The program adds what it knows: ``steps``, ``evaluations``, ``saves``, ``bytes``."""
    told: dict[str, Any] = {}
    began = time.perf_counter()
    yield told
    told["seconds"] = time.perf_counter() - began
    weights = told.pop("weights", None)
    if weights is not None:
        digest = hashlib.sha256()
        for value in weights.values():
            digest.update(value.detach().cpu().numpy().tobytes())
        told["weights"] = digest.hexdigest()[:16]
    if int(os.environ.get("RANK", "0")) == 0:
        print("\n" + MARK + json.dumps(told), flush=True)


def size(folder: Path) -> int:
    """The bytes of all files below it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
