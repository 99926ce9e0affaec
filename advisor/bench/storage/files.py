"""Writes, syncs and reads the files of a bench."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass, field

BLOCK = 1 << 20
_POOL = 8 << 20
_NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_STRIDE = 4099  # odd, so that two blocks do not have a page in common


@dataclass(slots=True)
class Writer:
    """Writes files with bytes that neither compress nor repeat, and syncs each file to storage.

    ``seconds`` is the time from opening to closing the files; ``each`` has it for each file.
    """

    pool: memoryview = field(default_factory=lambda: memoryview(os.urandom(_POOL)))
    blocks: int = 0
    bytes: int = 0
    seconds: float = 0.0
    each: list[float] = field(default_factory=list)

    def write(self, path: str, size: int, *, sync: bool = True) -> None:
        """Writes one file of ``size`` bytes, which must not exist. Raises OSError."""
        begun = time.perf_counter()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            done = 0
            while done < size:
                done += os.write(descriptor, self._block(min(BLOCK, size - done)))
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        took = time.perf_counter() - begun
        self.bytes += size
        self.seconds += took
        self.each.append(took)

    def _block(self, size: int) -> memoryview:
        self.blocks += 1
        start = self.blocks * _STRIDE % (len(self.pool) - BLOCK)
        return self.pool[start : start + size]


def sync_directory(path: str) -> None:
    """Syncs a directory, if its file system supports that. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def sync_files(paths: list[str]) -> None:
    """Syncs files to storage. Raises OSError."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def files_below(directory: str) -> list[str]:
    """The paths of all files in a directory and its subdirectories."""
    return [os.path.join(folder, name) for folder, _, names in os.walk(directory) for name in sorted(names)]


def read_whole(path: str) -> int:
    """Opens a file, reads it to its end and closes it. Returns the number of bytes. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    done = 0
    try:
        while block := os.read(descriptor, BLOCK):
            done += len(block)
    finally:
        os.close(descriptor)
    return done
