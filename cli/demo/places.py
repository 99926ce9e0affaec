"""The directories of a demo: small files in memory, checkpoints on a disk. All are removed afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass

_MEMORY = "/dev/shm"
_MEGABYTE = 1 << 20
_CHECKPOINT_BYTES = 16 * _MEGABYTE  # per rank: the last checkpoint and the next one
_MEMORY_BYTES = 8 * _MEGABYTE  # per rank: its ledger, its records of delays, and batches on their way from the worker


class NoRoom(Exception):
    """There is not enough space. The message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Places:
    """The directories of one demo. :func:`make` creates them."""

    memory: str
    disk: str

    @property
    def ledgers(self) -> str:
        return os.path.join(self.memory, "ledgers")

    @property
    def trace(self) -> str:
        return os.path.join(self.memory, "trace")

    @property
    def temporary(self) -> str:
        """The job's TMPDIR. It is in memory, because sockets need a short path."""
        return os.path.join(self.memory, "tmp")

    def log(self, name: str) -> str:
        return os.path.join(self.memory, f"{name}.log")

    def remove(self) -> None:
        shutil.rmtree(self.memory, ignore_errors=True)
        shutil.rmtree(self.disk, ignore_errors=True)


def make(ranks: int) -> Places:
    """Creates the directories for a job of ``ranks`` ranks. Raises NoRoom."""
    if os.path.isdir(_MEMORY):
        _check_room(_MEMORY, ranks * _MEMORY_BYTES, "in a container: --shm-size=1g, or an emptyDir with medium: Memory")
    disk = _make(_disks(), ranks * _CHECKPOINT_BYTES)
    try:
        places = Places(_make([_MEMORY, tempfile.gettempdir()], ranks * _MEMORY_BYTES), disk)
    except BaseException:
        shutil.rmtree(disk, ignore_errors=True)
        raise
    for directory in (places.ledgers, places.trace, places.temporary):
        os.mkdir(directory)
    return places


def _make(parents: list[str], size: int) -> str:
    for parent in parents:
        with suppress(OSError):
            directory = tempfile.mkdtemp(prefix=f"whyidle-demo-{os.getpid()}-", dir=parent)
            try:
                _check_room(directory, size, "set TMPDIR to a directory with more space")
            except BaseException:
                os.rmdir(directory)
                raise
            return directory
    raise NoRoom(f"cannot write to {' or '.join(parents)}: set TMPDIR to a writable directory")


def _check_room(directory: str, size: int, hint: str) -> None:
    status = os.statvfs(directory)
    free = status.f_bavail * status.f_frsize
    if free < size:
        need = f"the demo needs {size // _MEGABYTE} MB, and {free // _MEGABYTE} MB are free"
        raise NoRoom(f"not enough space in {directory}: {need}; {hint}")


def _disks() -> list[str]:
    """$TMPDIR if it is set, otherwise the usual directories. Those on a disk come first, because an fsync on a tmpfs
    takes no time."""
    if os.environ.get("TMPDIR"):
        return [tempfile.gettempdir()]
    usual = ["/var/tmp", tempfile.gettempdir()]
    mounts = _memory_mounts()
    return sorted(usual, key=lambda directory: _mount_of(directory, mounts))


def _memory_mounts() -> dict[str, bool]:
    """Mount point -> whether it is a tmpfs (/proc/self/mountinfo, proc(5))."""
    mounts = {"/": False}
    with suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            mounts[before.split()[4]] = after.split()[0] in ("tmpfs", "ramfs")
    return mounts


def _mount_of(directory: str, mounts: dict[str, bool]) -> bool:
    """Whether ``directory`` is in memory."""
    path = os.path.realpath(directory)
    while path not in mounts:
        path = os.path.dirname(path)
    return mounts[path]
