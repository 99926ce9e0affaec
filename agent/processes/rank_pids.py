"""Finds the process of a live ledger.

A ledger contains its writer's pid and start time, but it is untrusted input, and the pid is one of the writer's own pid
namespace. The kernel knows which process holds the ledger's lock: F_GETLK returns its pid in the agent's pid namespace,
/proc/locks in the pid namespace of the procfs that is read. If neither works, all processes are searched for one with
the same start time, innermost pid and owner. (A lock on btrfs or overlayfs is listed with a device that differs from
stat's.)
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
"""The shortest time between two searches. A search reads 2000 files on a busy node, and anyone may write to the ledger
directory: bad ledgers must not make the agent search all the time.
"""
RETRY_SECONDS = 60.0
RETRY_AT_LEAST_EVERY_SECONDS = 960.0
PROCESSES = 1 << 16
"""The maximum number of processes that are searched."""

Claim = tuple[str, int, int, int, int]  # path, creation time, pid, start time of the pid, pid from F_GETLK


@dataclass(slots=True)
class _Wanted:
    """A ledger whose process has not been found."""

    due: float = 0.0
    pause: float = RETRY_SECONDS


class RankPids:
    """Finds the pids of ledgers. Results are kept while a ledger is live: its lock cannot pass to another process."""

    def __init__(self, procfs: str):
        self._procfs = procfs
        self._found: dict[Claim, int] = {}
        self._wanted: dict[Claim, _Wanted] = {}
        self._next_search = 0.0
        self._own: bool | None = None

    def find(self, ledgers: Iterable[Ledger]) -> list[int]:
        """The pid of each live ledger in this procfs, or 0 if its process is not visible."""
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
        except Unreadable:  # the file does not exist if procfs is mounted with subset=pid
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
        """Whether a process has the pid and the start time that the ledger contains."""
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
        """The processes that started at one of these times: (start time, pid)."""
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
        """Whether a process has the pid in the ledger and the ledger's owner, so that nobody can name another user's
        process.
        """
        try:
            process = self._identity(pid)
            return process.pids[-1] == ledger.pid and process.uid == os.lstat(ledger.path).st_uid
        except (Unreadable, OSError):
            return False

    def _is_own_namespace(self) -> bool:
        """Whether this procfs has the pid namespace that F_GETLK uses: then the agent has only one pid in it."""
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
