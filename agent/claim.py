"""Notices another agent that reads the same ledgers: if Prometheus scrapes both, it counts every rank twice."""

from __future__ import annotations

import fcntl
import os

from .log import Log


class Claim:
    """A lock on the ledger directory, which ends with the process. It excludes nobody: the agent without it warns."""

    def __init__(self, directory: str, log: Log) -> None:
        self._directory = directory
        self._log = log
        self._fd = -1
        self._warned = False

    def look(self) -> None:
        """Takes the lock, unless this agent has it. The directory may be missing, or be another one than before."""
        try:
            fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return
        if self._fd >= 0 and os.path.sameopenfile(fd, self._fd):
            os.close(fd)
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError) and not self._warned:
                self._warned = True
                self._log.warning(
                    "another agent reads these ledgers: a Prometheus that scrapes both counts every rank twice",
                    directory=self._directory,
                )
            return
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
