"""When a killed rank was first found dead: the time of an empty file beside its ledger.

A killed rank leaves only its last sign of life. A rank that is stopped, or in which a thread holds Python's lock, gives
none, perhaps for days before it is killed. So whoever may remove its ledger notes when nobody held the ledger any more.
The note is a file, so that it outlives an agent, and because an agent may not be allowed to write to ledgers.
"""

from __future__ import annotations

import os
import stat

from .layout import SUFFIX

NOTE = ".end"


def note_of(path: str) -> str:
    """The path of the note on a ledger."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}{NOTE}")


def ledger_of(note: str) -> str:
    """The path of the ledger that a file would be a note on; empty if its name is not that of a note."""
    directory, name = os.path.split(note)
    is_note = name.startswith(".") and name.endswith(SUFFIX + NOTE)
    return os.path.join(directory, name[1 : -len(NOTE)]) if is_note else ""


def found_dead(path: str, uid: int) -> int | None:
    """When the rank with this ledger, a file of the user ``uid``, was found dead (unix ns); None if nobody noted it.

    Only notes of those count who may remove the ledger.
    """
    try:
        status = os.lstat(note_of(path))
        trusted = stat.S_ISREG(status.st_mode) and status.st_uid in (os.geteuid(), *_may_remove(path, uid))
    except OSError:
        return None
    return status.st_mtime_ns if trusted else None


def note_death(path: str, uid: int) -> None:
    """Notes that the rank with this ledger is dead. Raises OSError, also if this process may not remove the ledger."""
    if os.geteuid() not in _may_remove(path, uid):
        raise PermissionError(f"{path}: another user's")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.close(os.open(note_of(path), flags, 0o644))
    except FileExistsError:  # of somebody whose notes do not count
        os.unlink(note_of(path))
        os.close(os.open(note_of(path), flags, 0o644))


def _may_remove(path: str, uid: int) -> tuple[int, int, int]:
    """The directory is sticky."""
    return 0, uid, os.stat(os.path.dirname(path) or ".").st_uid
