"""The mounts of this node to which files could be moved: how much is free, and how fast a bench found them.

`whyidle bench storage --save` keeps the rates in a file beside the ledgers, by mount.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from ..advisor.advice.case import Room
from ..advisor.bench.storage.dataset import LOOP
from ..ledger.reader import Ledger
from ..linux.mountinfo import mount_of, mounts
from ..linux.unreadable import Unreadable
from ..verdict.mounts import Key

FILE = "bench-storage.json"
MOST_BYTES = 1 << 18
PATIENCE_SECONDS = 1.0
"""A statvfs that takes longer hangs: its server is gone."""
FASTEST = 1e15
_SHARDS, _SAVE = "shards: read in order", ": save and fsync"
_hanging: set[str] = set()
"""Mount points for which a statvfs has not returned."""


def of_ledgers(ledgers: Iterable[Ledger]) -> dict[Key, Room]:
    """The mounts that runs of this node have used or that a bench has measured, if their free space is known."""
    known = _mounted()
    directories = {os.path.dirname(one.path) for one in ledgers}
    benched = {key: rates for directory in directories for key, rates in _saved(directory).items()}
    used = {(mount.point, mount.fstype, mount.source) for one in ledgers for mount in one.mounts}
    found = {}
    for key in sorted((used | benched.keys()) & known):
        if (free := _free(key[0])) is not None:
            found[key] = Room(key[0], free, *benched.get(key, (None, None)))
    return found


def save(directory: str, paths: Iterable[Mapping[str, Any]]) -> None:
    """Adds the results of a bench, by path, to those that are kept in a directory. Raises OSError."""
    kept = _saved(directory)
    for path in paths:
        place = mount_of(os.path.realpath(path["path"]), _table())
        rates = {measure["name"]: measure["bytes_per_second"] for measure in path["measures"]}
        saves = [rate for name, rate in rates.items() if name.endswith(_SAVE) and rate]
        if place is not None:
            key = place.point, place.fstype, place.source
            read, write = kept.get(key, (None, None))
            kept[key] = rates.get(LOOP) or rates.get(_SHARDS) or read, min(saves, default=write)
    os.makedirs(directory, exist_ok=True)
    handle, path = tempfile.mkstemp(dir=directory)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            json.dump([[*key, *rates] for key, rates in kept.items()], file)
        os.chmod(path, 0o644)
        os.replace(path, os.path.join(directory, FILE))
    except OSError:
        os.unlink(path)
        raise


def _saved(directory: str) -> dict[Key, tuple[float | None, float | None]]:
    """Mount -> the rates at which a bench read and wrote there. Anybody may have written the file."""
    try:
        handle = os.open(os.path.join(directory, FILE), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, encoding="utf-8") as file:
            rows = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    found: dict[Key, tuple[float | None, float | None]] = {}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and len(row) == 5 and all(isinstance(part, str) for part in row[:3]):
            point, fstype, source, *rates = row
            found[point, fstype, source] = _rate(rates[0]), _rate(rates[1])
    return found


def _rate(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and 0 < value < FASTEST else None


def _table() -> dict[int, Any]:
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            return mounts(file.read())[0]
    except (OSError, Unreadable):
        return {}


def _mounted() -> set[Key]:
    """The mounts of this process. A mount hides earlier ones on the same mount point."""
    top = {mount.point: mount for mount in _table().values()}
    return {(mount.point, mount.fstype, mount.source) for mount in top.values()}


def _free(point: str) -> int | None:
    """The bytes that are free; None if that is not known, or if nothing can be written there."""
    if point in _hanging:
        return None
    found: list[os.statvfs_result] = []

    def ask() -> None:
        with suppress(OSError):
            found.append(os.statvfs(point))
        _hanging.discard(point)

    _hanging.add(point)
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    if not found or found[0].f_flag & os.ST_RDONLY:
        return None
    return found[0].f_bavail * found[0].f_frsize
