"""Measures small files: how fast they are created, opened and read, and removed."""

from __future__ import annotations

import os
import random
import time

from . import caches
from .files import Writer, read_whole, sync_directory, sync_files
from .plan import Found, Measure, Plan, Tell

SMALL = 4096
_IN_A_FOLDER = 1000


def measure(place: str, plan: Plan, tell: Tell) -> Found:
    """Creates, reads and removes small files. Raises OSError."""
    writer, paths = Writer(), []
    deadline = _deadline(plan)
    for number in range(plan.small_files):
        folder = os.path.join(place, f"folder-{number // _IN_A_FOLDER}")
        if number % _IN_A_FOLDER == 0:
            os.mkdir(folder)
        paths.append(os.path.join(folder, f"{number}.bin"))
        writer.write(paths[-1], SMALL, sync=False)
        tell(number / plan.small_files / 3, "create")
        if time.perf_counter() > deadline:
            break
    sync_files(paths)
    for folder in {os.path.dirname(path) for path in paths}:
        sync_directory(folder)
    cached = caches.drop(paths)
    random.Random(0).shuffle(paths)
    deadline = _deadline(plan)
    read: list[float] = []
    for path in paths:
        begun = time.perf_counter()
        read_whole(path)
        read.append(time.perf_counter() - begun)
        tell((1 + len(read) / len(paths)) / 3, "open and read")
        if time.perf_counter() > deadline:
            break
    removed: list[float] = []
    for path in paths:
        begun = time.perf_counter()
        os.unlink(path)
        removed.append(time.perf_counter() - begun)
        tell((2 + len(removed) / len(paths)) / 3, "remove")
    return [
        Measure("small files: create", 0, len(writer.each), "files", writer.seconds, writer.each),
        Measure("small files: open and read", 0, len(read), "files", sum(read), read, cached),
        Measure("small files: remove", 0, len(removed), "files", sum(removed), removed),
    ]


def _deadline(plan: Plan) -> float:
    return time.perf_counter() + (plan.seconds or float("inf"))
