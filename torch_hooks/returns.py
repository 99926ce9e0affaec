"""Which checkpoint a restarted run restores, and by which command: the newest one, or an older one that somebody chose.

Ledgers of earlier attempts have the time and the path of their last saves. The files themselves are never read.
"""

from __future__ import annotations

import os
import stat
import sys
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..ledger.layout import BRANCHED, CONTINUED, RETURNED
from ..ledger.reader import Saved
from .restart import Restart

CONFIGURATIONS = (".py", ".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf", ".gin", ".sh")
"""Arguments that end like this are taken for configuration files if such a file exists. Their content counts too."""
_MOST_BYTES, _MOST_FILES = 1 << 20, 16
NEAR_NS = 2_000_000_000
"""A file that was modified this long before or after a save ended may be its file."""
STEP_KEYS = ("global_step", "step", "steps", "iteration", "iterations", "iter", "iter_num", "done")
"""Where checkpoints that are dictionaries have the number of their step."""


class CheckpointFile(NamedTuple):
    """What is known of a file, or a directory, that was saved or loaded."""

    size: int = 0
    path: int = 0
    """A hash of the path; 0: not known."""
    folder: int = 0
    """The same of the directory that it is in. Frameworks save several files into one directory."""
    modified_ns: int = 0
    """Unix time; 0: not known."""
    step: int = -1
    """The step that the checkpoint itself names; -1: none."""


def file_of(file: Any) -> CheckpointFile:
    """The file of a path, or of a file object after it was written or read. Never raises."""
    try:
        named = isinstance(file, (str, os.PathLike))
        path = file if named else getattr(file, "name", None)
        size = 0 if named or not hasattr(file, "tell") else int(file.tell())
        if not isinstance(path, (str, os.PathLike)):
            return CheckpointFile(size)
        whole = os.path.abspath(os.fspath(path))  # pyright: ignore[reportUnknownArgumentType]
        status = os.stat(whole)
        # What is written to a file object may reach the file later.
        written = not named and getattr(file, "writable", bool)()
        modified = 0 if written else status.st_mtime_ns
        return CheckpointFile(
            status.st_size if named else size, hash_of(whole), hash_of(os.path.dirname(whole)), modified
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return CheckpointFile()


def directory_of(path: Any, size: int = 0) -> CheckpointFile:
    """A directory in DCP's format, whose metadata is written last. Never raises."""
    try:
        whole = os.path.abspath(os.fspath(path))
        metadata = os.path.join(whole, ".metadata")
        modified = os.stat(metadata).st_mtime_ns if os.path.exists(metadata) else 0
        return CheckpointFile(size, hash_of(whole), 0, modified)
    except (OSError, ValueError, TypeError):
        return CheckpointFile(size)


def step_in(loaded: Any) -> int:
    """The step that a loaded checkpoint names; -1 if it names none. Only plain numbers are read."""
    if type(loaded) is dict:
        for key in STEP_KEYS:
            if type(number := loaded.get(key)) is int and number >= 0:
                return number
    return -1


def hash_of(text: str | bytes) -> int:
    """Not 0, below 2^60."""
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return (zlib.crc32(raw) << 28 | zlib.adler32(raw) & 0xFFFFFFF) + 1


def command_hash(words: Sequence[str] | None = None) -> int:
    """A hash of the command line, and of the small configuration files that it names. Never raises."""
    words = sys.argv if words is None else words
    raw = bytearray()
    files = 0
    for word in words:
        raw += word.encode("utf-8", "surrogateescape") + b"\0"
        path = word.rpartition("=")[2]
        if path.endswith(CONFIGURATIONS) and files < _MOST_FILES:
            files += 1
            raw += _content(path) + b"\0"
    return hash_of(bytes(raw))


def _content(path: str) -> bytes:
    try:
        # Nothing but a regular file: to open a FIFO could block.
        if not stat.S_ISREG((status := os.stat(path)).st_mode) or status.st_size > _MOST_BYTES:
            return b""
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES)
    except (OSError, ValueError):
        return b""


def match(saves: Sequence[Saved], file: CheckpointFile) -> Saved | None:
    """The save whose file this is; None if it is not known."""
    for fits in (_same_file, _same_path, _near, _names_step):
        if found := [save for save in saves if fits(save, file)]:
            return min(found, key=lambda save: (_distance(save, file), -abs(save.unix_ns)))
    return None


def _same_file(save: Saved, file: CheckpointFile) -> bool:
    """Files that are renamed, or copied with their times, keep this."""
    return file.modified_ns > 0 and save.unix_ns == file.modified_ns


def _same_path(save: Saved, file: CheckpointFile) -> bool:
    # A file with another time than it had after the save was replaced since.
    exact = save.unix_ns > 0 and file.modified_ns > 0
    return save.path != 0 and save.path in (file.path, file.folder) and not exact


def _near(save: Saved, file: CheckpointFile) -> bool:
    return save.unix_ns < 0 and file.modified_ns > 0 and abs(file.modified_ns + save.unix_ns) <= NEAR_NS


def _names_step(save: Saved, file: CheckpointFile) -> bool:
    """Scripts count steps from 0 or from 1."""
    return file.step >= 0 and save.step - file.step in (0, 1)


def _distance(save: Saved, file: CheckpointFile) -> int:
    if save.unix_ns < 0 < file.modified_ns and not save.path:
        return abs(file.modified_ns + save.unix_ns)
    return abs(save.step - file.step) if file.step >= 0 else 0


class Beginning(NamedTuple):
    """How an attempt goes on from a checkpoint."""

    kind: int
    """CONTINUED, RETURNED or BRANCHED."""
    step: int
    """Of the checkpoint."""
    attempt: int
    """That has saved it; -1 if that is not known."""
    repeat_until: int
    """Steps up to this number are repeated. A branch repeats none."""


def beginning_of(before: Restart, files: Iterable[CheckpointFile], command: int) -> Beginning | None:
    """How an attempt goes on that has loaded these files before its first step; None if no save is known.

    A file that is not known is taken for the newest checkpoint. If there are several, the newest counts.
    """
    known = [save for file in files if (save := match(before.saves, file)) is not None]
    found = max(known, key=lambda save: save.step, default=None)
    if found is None:
        if before.checkpoint_step < 0:
            return None
        return Beginning(CONTINUED, before.checkpoint_step, before.saved_by, before.steps)
    if found.step == before.checkpoint_step or before.by_launcher:
        return Beginning(CONTINUED, found.step, found.attempt, before.steps)
    if before.command and command and before.command != command:
        return Beginning(BRANCHED, found.step, found.attempt, 0)
    return Beginning(RETURNED, found.step, found.attempt, before.steps)
