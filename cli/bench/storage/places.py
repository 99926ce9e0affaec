"""The directories that a bench writes to, one on each path. All are removed afterwards."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import sys
import tempfile
from typing import NamedTuple

from ....advisor.bench.storage.caches import FileSystem, file_system
from ....advisor.bench.storage.plan import BenchError
from ....ledger.clock import own_clock
from ...quantities import in_bytes

PREFIX = "whyidle-bench-"
_MEMORY = "/dev/shm"
_NAME = re.compile(rf"{PREFIX}(\d+)-([0-9a-f]{{8}})-\w+")
"""The pid of the bench that made a directory, and where that pid means something (see `_here`)."""


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
            "Make room, or measure less (--size, --files, --checkpoint-size, --only)"
        )


@functools.cache
def _here() -> str:
    """A short name for this boot of this kernel and this pid namespace. Others may share a path, and use the same
    pids."""
    try:
        pids = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        pids = 0
    return hashlib.sha256(f"{own_clock().boot} {pids}".encode()).hexdigest()[:8]


def _prefix() -> str:
    return f"{PREFIX}{os.getpid()}-{_here()}-"


def remove_left(path: str) -> None:
    """Removes what killed benches of this user, on this node since its last boot, left on the path."""
    try:
        with os.scandir(path) as entries:
            left = [entry.path for entry in entries if _is_left(entry)]
    except OSError:  # `check` says why
        return
    for directory in left:
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.lexists(directory):
            print(f"whyidle bench storage: removed {directory}, which a killed bench had left", file=sys.stderr)


def _is_left(entry: os.DirEntry[str]) -> bool:
    name = _NAME.fullmatch(entry.name)
    if name is None or name[2] != _here() or os.path.exists(f"/proc/{name[1]}"):
        return False
    return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()


def make(path: str) -> Place:
    """Creates a directory on the path. Raises BenchError."""
    try:
        directory = tempfile.mkdtemp(prefix=_prefix(), dir=os.path.abspath(path))
    except OSError as error:
        raise BenchError(f"{path} cannot be written to: {error.strerror}") from error
    return Place(path, directory, file_system(directory))


def make_own() -> str:
    """Creates a directory for ledgers and logs, in memory if possible. Raises BenchError."""
    for parent in (_MEMORY, tempfile.gettempdir()):
        remove_left(parent)
        try:
            return tempfile.mkdtemp(prefix=_prefix(), dir=parent)
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
