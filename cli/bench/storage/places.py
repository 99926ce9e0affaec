"""The directories that a bench writes to, one on each path. All are removed afterwards."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from typing import NamedTuple

from ....advisor.bench.storage.caches import FileSystem, file_system
from ....advisor.bench.storage.plan import BenchError
from ...quantities import in_bytes

PREFIX = "whyidle-bench-"
_MEMORY = "/dev/shm"


class Place(NamedTuple):
    path: str
    """The path as the user wrote it."""
    directory: str
    file_system: FileSystem


def check(path: str, room: int) -> None:
    """Raises BenchError if ``path`` cannot be measured. ``room``: the bytes that must be free."""
    try:
        if not os.path.isdir(path):
            os.stat(path)
            raise BenchError(f"{path} is not a directory")
        status = os.statvfs(path)
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from error
    free = status.f_bavail * status.f_frsize
    if status.f_blocks and free < room:  # mounts of object stores may not report their size
        raise BenchError(
            f"{path} is too full: {in_bytes(room)} are needed and {in_bytes(free)} are free. "
            "Make room, or measure less (--size, --checkpoint-size, --only)"
        )


def make(path: str) -> Place:
    """Creates a directory on the path. Raises BenchError."""
    try:
        directory = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=os.path.abspath(path))
    except OSError as error:
        raise BenchError(f"{path} cannot be written to: {error.strerror}") from error
    return Place(path, directory, file_system(directory))


def make_own() -> str:
    """Creates a directory for ledgers and logs, in memory if possible. Raises BenchError."""
    for parent in (_MEMORY, tempfile.gettempdir()):
        try:
            return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent)
        except OSError:
            continue
    raise BenchError(f"cannot write to {_MEMORY} or {tempfile.gettempdir()}: set TMPDIR")


def remove(directory: str) -> bool:
    """Removes a directory. Returns whether it is gone, and prints a message to stderr if not."""
    shutil.rmtree(directory, ignore_errors=True)
    if os.path.lexists(directory):
        print(f"whyidle bench storage: {directory} could not be removed: remove it by hand", file=sys.stderr)
        return False
    return True
