"""When a killed rank was first found dead: the time of a file beside its ledger, the note. It may say why.

A killed rank leaves only its last sign of life. A rank that is stopped, or in which a thread holds Python's lock, gives
none, perhaps for days before it is killed. So whoever may remove its ledger notes when nobody held the ledger any more.
The note is a file, so that it outlives an agent, and because an agent may not be allowed to write to ledgers.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass
from typing import Any

from .layout import SUFFIX

NOTE = ".end"
_NOTE_BYTES = 2048
OTHERS = 4
"""At most this many other processes are named."""
NAME_LENGTH = 48


@dataclass(frozen=True, slots=True)
class OomKill:
    """What the kernel says about a rank, or processes of its control group, that it killed because memory ran out."""

    evidence: str
    """`log`: the kernel's log. `count`: the group's count of such processes has grown."""
    itself: bool
    """Whether the log names the process of the rank."""
    limit: int = 0
    """Bytes: the limit that was reached, by the log; 0: not known, or the node's memory ran out."""
    of_node: bool = False
    """Whether the node's memory ran out, and not that of a control group."""
    others: tuple[str, ...] = ()
    """Other processes of its group, as `python (pid 7)`, by the log."""


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


def oom_of(path: str, uid: int) -> OomKill | None:
    """What the note on this ledger says about the kernel. The rank was found dead: see `found_dead`."""
    try:
        fd = os.open(note_of(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        trusted = stat.S_ISREG(status.st_mode) and status.st_uid in (os.geteuid(), *_may_remove(path, uid))
        return _parsed(os.read(fd, _NOTE_BYTES)) if trusted and status.st_size else None
    except OSError:
        return None
    finally:
        os.close(fd)


def _parsed(data: bytes) -> OomKill | None:
    try:
        words: Any = json.loads(data)
        found = OomKill(words["evidence"], words["itself"], words["limit"], words["of_node"], tuple(words["others"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    good = (
        found.evidence in ("log", "count")
        and isinstance(found.itself, bool)
        and isinstance(found.of_node, bool)
        and type(found.limit) is int
        and 0 <= found.limit < 1 << 61
        and len(found.others) <= OTHERS
        and all(isinstance(one, str) and one.isprintable() and len(one) <= NAME_LENGTH for one in found.others)
    )
    return found if good else None


def note_oom(path: str, found: OomKill) -> None:
    """Adds to the note on this ledger. Its time stays. Raises OSError."""
    fd = os.open(note_of(path), os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{note_of(path)}: not a regular file")
        os.ftruncate(fd, 0)
        os.write(fd, json.dumps(asdict(found)).encode())
        os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(fd)


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
