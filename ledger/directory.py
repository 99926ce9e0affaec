"""A directory of ledgers: which ledgers are usable, which user they belong to, and when they are removed."""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from .deaths import ledger_of, note_death, note_of
from .layout import SUFFIX
from .reader import Ledger, LedgerError, is_held, read_ledger
from .text import printable

DEFAULT_DIR = "/dev/shm/whyidle"
MAX_LEDGERS = 1024
"""A reader opens at most this many files, because anyone may write to the directory."""
_NAMED = 3
"""The most problems of one kind that are told one by one."""
MAX_NAMES = 16 * MAX_LEDGERS

Run = tuple[str, str]  # owner, run: runs with the same name and different owners are different runs
Key = tuple[str, str, int]  # owner, run, rank


def ledger_dir() -> str:
    """``$WHYIDLE_DIR``, or the default directory."""
    return os.environ.get("WHYIDLE_DIR") or DEFAULT_DIR


@dataclass(slots=True)
class Problem:
    """A ledger that could not be used. ``inode`` is 0 if it is not known."""

    path: str
    inode: int
    reason: str
    detail: str


def read_directory(
    directory: str,
    *,
    steps: bool = False,
    users: Mapping[Key, int] | None = None,
    uid: int | None = None,
    known: Iterable[str] = (),
    own: str = "",
) -> tuple[list[Ledger], list[Problem]]:
    """Returns the usable ledgers of a directory, and the problems of the others. A missing directory counts as empty.

    ``users``: the uid that each rank belonged to at the last call. ``known``: the paths of the ledgers that were valid
    then. With ``uid``, ledgers of other users are ignored. ``own``: the path of the caller's own ledger, which is left
    out because reading it would drop its lock.
    """
    ledgers: list[Ledger] = []
    problems: list[Problem] = []
    waited: Counter[int] = Counter()
    try:
        for path in ledger_paths(directory, known):
            if path == own:
                continue
            try:
                ledger = read_ledger(path, steps=steps, waited=waited)
            except LedgerError as error:
                if error.reason == "io" and not os.path.lexists(path):
                    continue  # it was removed in the meantime
                problems.append(_problem(path, error.reason, str(error)))
                continue
            if uid is not None and ledger.uid != uid:
                continue
            ledgers.append(ledger)
            if ledger.died_mid_write:
                problems.append(_problem(path, "died_mid_write", f"{path}: its writer died in the middle of an update"))
    except LedgerError as error:
        problems.append(_problem(directory, error.reason, str(error)))
    ledgers, strangers = drop_strangers(ledgers, users or {})
    ledgers, duplicates = drop_duplicates(ledgers)
    return ledgers, problems + strangers + duplicates


def sentences(problems: Sequence[Problem]) -> list[str]:
    """What to tell people about problems. Many of one kind, as after an upgrade of whyidle, are one sentence."""
    kinds: dict[str, list[Problem]] = {}
    for problem in problems:
        kinds.setdefault(problem.reason, []).append(problem)
    told = []
    for alike in kinds.values():
        if len(alike) <= _NAMED:
            told += [problem.detail for problem in alike]
        else:
            told.append(f"{len(alike)} ledgers have the same problem as this one: {alike[-1].detail}")
    return told


def _problem(path: str, reason: str, detail: str) -> Problem:
    try:
        inode = os.lstat(path).st_ino
    except OSError:
        inode = 0
    return Problem(path, inode, reason, printable(detail))  # a file may have any name


def run_of(ledger: Ledger) -> Run:
    return ledger.owner, ledger.run


def key_of(ledger: Ledger) -> Key:
    return ledger.owner, ledger.run, ledger.rank


def drop_strangers(ledgers: Iterable[Ledger], users: Mapping[Key, int]) -> tuple[list[Ledger], list[Problem]]:
    """Drops ledgers that claim a rank of another user. Each rank belongs to one user.

    A rank stays with the user in ``users`` as long as that user has a live ledger for it. After that, it belongs to the
    user of its oldest live ledger.
    """
    by_key: dict[Key, list[Ledger]] = {}
    for ledger in ledgers:
        by_key.setdefault(key_of(ledger), []).append(ledger)
    kept: list[Ledger] = []
    problems: list[Problem] = []
    for key, claims in by_key.items():
        user = _user(claims, users.get(key))
        for ledger in claims:
            if ledger.uid == user:
                kept.append(ledger)
            elif ledger.alive:
                detail = f"{ledger.path}: rank {ledger.rank} of run {ledger.run} is another user's than {ledger.uid}'s"
                problems.append(_problem(ledger.path, "duplicate", detail))
    return kept, problems


def _user(claims: list[Ledger], before: int | None) -> int:
    live = [ledger for ledger in claims if ledger.alive]
    if before is not None and any(ledger.uid == before for ledger in live):
        return before
    return min(live, key=lambda ledger: ledger.created_unix_ns).uid if live else max(claims, key=age).uid


def drop_duplicates(ledgers: Iterable[Ledger]) -> tuple[list[Ledger], list[Problem]]:
    """Keeps only the oldest of live ledgers that claim the same rank in the same attempt."""
    kept: list[Ledger] = []
    problems: list[Problem] = []
    seen: set[tuple[Key, int]] = set()
    for ledger in sorted(ledgers, key=lambda ledger: (ledger.created_unix_ns, ledger.path)):
        claim = (key_of(ledger), ledger.attempt)
        if ledger.alive and claim in seen:
            detail = f"{ledger.path}: another live process is already rank {ledger.rank} of run {ledger.run}"
            problems.append(_problem(ledger.path, "duplicate", detail))
            continue
        if ledger.alive:
            seen.add(claim)
        kept.append(ledger)
    return kept, problems


def age(ledger: Ledger) -> tuple[bool, int, int]:
    """Sort key for the attempts of a rank, newest last. A live attempt counts as newer than any ended one."""
    return ledger.alive, ledger.attempt, ledger.created_unix_ns


def ledger_paths(directory: str, known: Iterable[str] = ()) -> Iterator[str]:
    """The paths of the ledgers in a directory, at most MAX_LEDGERS. If there are more, each user's newest in turn.

    The ``known`` paths can be chosen even if there are too many names to look at all of them. Raises
    LedgerError("directory") if the directory cannot be listed. Raises LedgerError("too_many") after the last path if
    there are more ledgers.
    """
    try:
        with os.scandir(directory) as entries:
            names: set[str] = set()
            for entry in entries:
                if entry.name.endswith(SUFFIX):
                    names.add(entry.name)
                    if len(names) > MAX_NAMES:
                        names.update(map(os.path.basename, known))
                        break
    except FileNotFoundError:
        return
    except OSError as error:
        raise LedgerError("directory", f"{directory}: {error.strerror}") from error
    chosen = names if len(names) <= MAX_LEDGERS else _newest_of_each(directory, names)
    for name in sorted(chosen):
        yield os.path.join(directory, name)
    if len(names) > MAX_LEDGERS:
        raise LedgerError("too_many", f"{directory}: more than {MAX_LEDGERS} ledgers")


def _newest_of_each(directory: str, names: Iterable[str]) -> list[str]:
    """Chooses MAX_LEDGERS of the names, in turn each user's: first those of live ranks, then the newest.

    A user who fills the directory, for example with a job that restarts again and again, only displaces their own
    ledgers, and only those of ranks that have ended.
    """
    of_user: dict[int, list[tuple[bool, int, str]]] = {}
    for name in names:
        path = os.path.join(directory, name)
        try:
            status = os.lstat(path)
        except OSError:  # it was removed in the meantime
            continue
        of_user.setdefault(status.st_uid, []).append((not _is_live(path), -status.st_mtime_ns, name))
    places = [(place, name) for files in of_user.values() for place, (*_, name) in enumerate(sorted(files))]
    return [name for _, name in sorted(places)[:MAX_LEDGERS]]


def _is_live(path: str) -> bool:
    try:
        # A name has the pid of its rank. If it is this process, to close its file would drop the lock on it.
        return f"-{os.getpid()}-" not in os.path.basename(path) and is_held(path)
    except OSError:
        return False


def is_tended(directory: str) -> bool:
    """Whether an agent removes old ledgers here, when it was told to: it has the lock on the directory."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def reap(directory: str, older_than_seconds: float) -> int:
    """Removes ledgers that ended more than ``older_than_seconds`` ago, and unfinished files. Returns how many.

    Keeps ledgers of live ranks, files that are not ledgers, and files that this user may not remove. An invalid ledger,
    or one of another version that no process holds, is removed when its file is old enough. Never raises.
    """
    removed = 0
    waited: Counter[int] = Counter()
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in islice(entries, 4 * MAX_LEDGERS)]
    except OSError:
        return 0
    for name in names:
        path = os.path.join(directory, name)
        try:
            if (ledger := ledger_of(path)) and not os.path.lexists(ledger):
                os.unlink(path)
            elif _is_over(path, name, older_than_seconds, waited):
                os.unlink(path)
                removed += 1
                if os.path.lexists(note_of(path)):
                    os.unlink(note_of(path))
        except OSError:
            continue
    return removed


def _is_over(path: str, name: str, older_than_seconds: float, waited: Counter[int]) -> bool:
    """Whether `reap` may remove this file. Raises OSError."""
    old = time.time() - os.lstat(path).st_mtime >= max(60.0, older_than_seconds)
    if name.startswith(".") and name.endswith(".new"):
        return old
    if not name.endswith(SUFFIX):
        return False
    try:
        ledger = read_ledger(path, waited=waited)
    except LedgerError as error:
        return old and (error.reason == "nonsense" or (error.reason == "version" and not is_held(path)))
    if ledger.death_unnoted:
        note_death(path, ledger.uid)
        return False
    return not ledger.alive and ledger.ended_seconds >= older_than_seconds
