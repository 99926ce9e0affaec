"""From a live ledger to its process.

A ledger says its writer's pid and start time, but it is untrusted, and its pid counts in a namespace of its own. The
kernel knows who holds its lock: F_GETLK says so in the agent's own pid namespace, /proc/locks in the one of the procfs
that is read. Where neither helps (a lock on btrfs or overlayfs is listed under a device that stat does not know), all
processes are searched for one of that start time, innermost pid and owner.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...ledger.reader import Ledger
from ..files import Unreadable, names, read
from ..parsers import locks, pidstat

SEARCH_EVERY_SECONDS = 10.0
"""At most: a search reads two thousand files on a busy node, and a directory of ledgers that anyone may write to must
not make the agent search without end."""
RETRY_SECONDS = 60.0
RETRY_AT_LEAST_EVERY_SECONDS = 960.0
PROCESSES = 1 << 16
"""So many are searched at most."""

Claim = tuple[str, int, int, int, int]  # path, creation time, pid, its start time, pid as F_GETLK says


@dataclass(slots=True)
class _Wanted:
    """A ledger whose process has not been found."""

    due: float = 0.0
    pause: float = RETRY_SECONDS


class RankPids:
    """Remembers what it found for as long as a ledger lives: a lock cannot pass to another process."""

    def __init__(self, procfs: str):
        self._procfs = procfs
        self._found: dict[Claim, int] = {}
        self._wanted: dict[Claim, _Wanted] = {}
        self._next_search = 0.0
        self._own: bool | None = None

    def find(self, ledgers: Iterable[Ledger]) -> list[int]:
        """The pid of each live ledger under this procfs, 0 where it cannot be seen."""
        by_claim = {_claim(ledger): ledger for ledger in ledgers}
        self._found = {claim: pid for claim, pid in self._found.items() if claim in by_claim}
        self._wanted = {claim: wanted for claim, wanted in self._wanted.items() if claim in by_claim}
        missing = {claim: ledger for claim, ledger in by_claim.items() if claim not in self._found}
        if missing:
            new = {claim: ledger for claim, ledger in missing.items() if claim not in self._wanted}
            self._wanted.update({claim: _Wanted() for claim in new})
            self._ask_kernel(new)
            self._search(missing, time.monotonic())
        return [self._found.get(claim, 0) for claim in by_claim]

    def _ask_kernel(self, new: dict[Claim, Ledger]) -> None:
        left = {}
        for claim, ledger in new.items():
            if not (ledger.visible_pid and self._is_own_namespace() and self._take(claim, ledger, ledger.visible_pid)):
                left[claim] = ledger
        if not left:
            return
        try:
            holders = locks.holders(read(f"{self._procfs}/locks"))
        except Unreadable:  # a procfs mounted with subset=pid has none
            return
        for claim, ledger in left.items():
            self._take(claim, ledger, holders.get(_file(ledger), 0))

    def _take(self, claim: Claim, ledger: Ledger, pid: int) -> bool:
        if not pid or not self._is_writer(ledger, pid):
            return False
        self._found[claim] = pid
        self._wanted.pop(claim, None)
        return True

    def _is_writer(self, ledger: Ledger, pid: int) -> bool:
        """Whether a process is what the ledger says of its writer."""
        try:
            if pidstat.parse(read(f"{self._procfs}/{pid}/stat")).start_ticks != ledger.pid_start_ticks:
                return False
            return self._identity(pid).pids[-1] == ledger.pid
        except Unreadable:
            return False

    def _search(self, missing: dict[Claim, Ledger], now: float) -> None:
        due = {
            claim: ledger
            for claim, ledger in missing.items()
            if (wanted := self._wanted.get(claim)) and wanted.due <= now and ledger.pid_start_ticks
        }
        if not due or now < self._next_search:
            return
        self._next_search = now + SEARCH_EVERY_SECONDS
        found = list(self._started_at({ledger.pid_start_ticks for ledger in due.values()}))
        for claim, ledger in due.items():
            pids = [pid for ticks, pid in found if ticks == ledger.pid_start_ticks and self._fits(ledger, pid)]
            if len(pids) == 1:
                self._take(claim, ledger, pids[0])
            else:
                wanted = self._wanted[claim]
                wanted.due = now + wanted.pause
                wanted.pause = min(wanted.pause * 2, RETRY_AT_LEAST_EVERY_SECONDS)

    def _started_at(self, ticks: set[int]) -> Iterator[tuple[int, int]]:
        """The processes that started then: start time, pid."""
        try:
            entries = names(self._procfs)
        except Unreadable:
            return
        for entry in [entry for entry in entries if entry.isdigit()][:PROCESSES]:
            try:
                started = pidstat.parse(read(f"{self._procfs}/{entry}/stat")).start_ticks
            except Unreadable:
                continue
            if started in ticks:
                yield started, int(entry)

    def _fits(self, ledger: Ledger, pid: int) -> bool:
        """Whether a process could have written the ledger: nobody can claim another user's."""
        try:
            process = self._identity(pid)
            return process.pids[-1] == ledger.pid and process.uid == os.lstat(ledger.path).st_uid
        except (Unreadable, OSError):
            return False

    def _is_own_namespace(self) -> bool:
        """Whether this procfs counts pids as F_GETLK does: then this very process has one pid there, not several."""
        if self._own is None:
            try:
                self._own = len(pidstat.identity(read(f"{self._procfs}/self/status")).pids) == 1
            except Unreadable:
                self._own = False
        return self._own

    def _identity(self, pid: int) -> pidstat.ProcessIds:
        return pidstat.identity(read(f"{self._procfs}/{pid}/status"))


def _claim(ledger: Ledger) -> Claim:
    return ledger.path, ledger.created_unix_ns, ledger.pid, ledger.pid_start_ticks, ledger.visible_pid


def _file(ledger: Ledger) -> locks.File:
    try:
        status = os.lstat(ledger.path)
    except OSError:
        return (0, 0, 0)
    return os.major(status.st_dev), os.minor(status.st_dev), status.st_ino
