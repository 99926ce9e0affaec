"""Finds the processes of the ranks on this node, and their workers."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from ...ledger.reader import Ledger
from ..files import Roots, Unreadable
from ..ledgers import LedgerStore, Snapshot, rank_name
from ..reading import ReadError, Reading
from .descendants import Descendants
from .rank_pids import RankPids

SHARED_SECONDS = 1.0
"""How long a result is shared by the collectors of one round."""
_PATIENCE_SECONDS = 1.0

_UNSEEN = (
    "the processes of some ranks",
    "they run in a pid namespace that this procfs does not show, or this procfs hides other users' processes (hidepid)",
    "give the agent the host's pid namespace (hostPID: true) or the host's /proc with --path.procfs, and let it run as "
    "root or as the user of the training",
)


@dataclass(frozen=True, slots=True)
class RankProcess:
    """The process of a live rank, as the agent sees it in its procfs."""

    ledger: Ledger  # run, rank, node, device, strings["uuid"], ...
    pid: int  # in the agent's procfs
    workers: tuple[int, ...]  # its descendants: data loader workers and the processes that they started
    workers_known: bool = True  # False if the descendants could not be read, so `workers` may be incomplete


class RankProcesses:
    """Finds the processes of the live ranks in the latest snapshot of the ledgers. Shared by several collectors."""

    def __init__(self, ledgers: LedgerStore, roots: Roots):
        self._ledgers = ledgers
        self._pids = RankPids(roots.procfs)
        self._descendants = Descendants(roots.procfs)
        self._lock = threading.Lock()  # a collector that hangs may still be in look() when the next round starts
        self._snapshot: Snapshot | None = None
        self._until = 0.0
        self._found: list[RankProcess] = []
        self._unseen = 0
        self._errors: list[ReadError] = []

    def look(self) -> list[RankProcess]:
        """The live ranks with visible processes. Raises TimeoutError while an earlier look hangs."""
        if not self._lock.acquire(timeout=_PATIENCE_SECONDS):
            raise TimeoutError("an earlier attempt to list the ranks' processes still hangs")
        try:
            snapshot = self._ledgers.latest
            now = time.monotonic()
            if snapshot is not self._snapshot or now >= self._until:
                self._look(snapshot)
                self._snapshot, self._until = snapshot, now + SHARED_SECONDS
            return self._found
        finally:
            self._lock.release()

    def report(self, reading: Reading) -> None:
        """Reports what the latest look could not see or read. Only one collector calls it, for all of them."""
        if self._unseen:
            reading.blind(*_UNSEEN)
        reading.errors += self._errors

    def _look(self, snapshot: Snapshot) -> None:
        live = [rank.newest for rank in snapshot.ranks if rank.newest.alive]
        seen = [(ledger, pid) for ledger, pid in zip(live, self._pids.find(live), strict=True) if pid]
        self._unseen = len(live) - len(seen)
        self._ledgers.pids.update((ledger.path, pid) for ledger, pid in seen)
        self._errors = []
        below = self._descendants.of(pid for _, pid in seen)
        found: list[RankProcess] = []
        for ledger, pid in seen:
            workers = below[pid]
            if isinstance(workers, Unreadable):
                self._errors.append(ReadError(rank_name(ledger), "children", workers.reason))
                found.append(RankProcess(ledger, pid, (), workers_known=False))
            else:
                found.append(RankProcess(ledger, pid, workers))
        self._found = found
