"""Reads a directory of ledgers as ranks: sums each rank's attempts, keeps ended ranks for a while, counts errors."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from ..ledger.deaths import OomKill, note_death, note_oom
from ..ledger.directory import Key, Problem, age, key_of, read_directory
from ..ledger.reader import LEDGER_REASONS, Ledger
from ..verdict.device_seconds import device_ns
from .files import Roots
from .group_sums import Groups, add_groups, of_rank
from .kernel.oom_kills import oom_kills_of
from .log import Log
from .metrics.ranks import METRICS
from .rising import Rising
from .run_sums import WORDS, FileKey, Place, RunCounters, RunSums, add, chain_of

COUNTERS: tuple[str, ...] = (
    *(metric.source for metric in METRICS if metric.type in ("counter", "histogram") and metric.source[0] != "<"),
    "step_ns",
)
"""The words of a ledger that are counters, and `device_ns` (verdict/device_seconds.py). They are summed over the
attempts of a rank."""

Totals = dict[str, tuple[int, ...]]


@dataclass(slots=True)
class Rank:
    """One rank of a run: its newest attempt, and its counters summed over all attempts that belong together, as in the
    sums of the run."""

    newest: Ledger
    totals: Totals
    groups: Groups
    """Label of a process group -> one value per word of group_sums.RANK_WORDS."""


@dataclass(slots=True)
class Snapshot:
    """The result of reading the directory once."""

    ranks: list[Rank]
    errors: dict[str, int]  # reason -> number of bad ledgers so far; contains every reason
    now_ns: int  # monotonic clock
    runs: dict[Place, RunCounters] = field(default_factory=dict)
    """The counters of each run, summed over its ranks on this node."""


@dataclass(slots=True)
class _History:
    """What the agent remembers about one rank, so that its counters never fall while the rank is exported.

    When the ledger of an ended attempt has been removed, its part of the counters is kept in ``base``.
    """

    uid: int
    base: Totals = field(default_factory=dict)
    base_groups: Groups = field(default_factory=dict)
    attempts: dict[FileKey, Ledger] = field(default_factory=dict)

    def update(self, read: dict[FileKey, Ledger], present: Set[FileKey], retention_seconds: float) -> None:
        """``present``: all ledgers that were read. A rank may learn its rank, or the name of its run, late."""
        for identity in self.attempts.keys() - read.keys():
            if identity in present:
                del self.attempts[identity]
            elif not os.path.lexists(identity[0]):
                ended = self.attempts.pop(identity)
                self.base = add(self.base, ended, COUNTERS)
                self.base_groups = add_groups(self.base_groups, ended, of_rank)
        chain = chain_of(read, retention_seconds)
        self.attempts.update((each, read[each]) for each in read if each in self.attempts or each in chain)

    def totals(self) -> Totals:
        totals = self.base
        for ledger in self.attempts.values():
            totals = add(totals, ledger, COUNTERS)
        return totals

    def groups(self) -> Groups:
        groups = self.base_groups
        for ledger in self.attempts.values():
            groups = add_groups(groups, ledger, of_rank)
        return groups


def rank_labels(ledger: Ledger) -> tuple[str, str, str]:
    """The values of the labels :data:`metrics.ranks.RANK`, which identify a rank."""
    return ledger.owner, ledger.run, str(ledger.rank)


def rank_name(ledger: Ledger) -> str:
    """The name of a rank in messages and in the label `device` of read errors."""
    return "/".join(rank_labels(ledger))


class LedgerStore:
    """The ranks of one ledger directory, which is read again at each :meth:`look`. Thread-safe.

    An ended rank stays until ``retention_seconds`` after its end. A rank whose newest ledger cannot be read
    is left out: its old values are not repeated.
    """

    def __init__(self, directory: str, retention_seconds: float, log: Log | None = None, roots: Roots | None = None):
        self.directory = directory
        self.retention_seconds = retention_seconds
        self._log = log
        self._roots = roots or Roots()
        self.pids: dict[str, int] = {}
        """Path of the ledger of a rank that was alive -> its pid in the node's pid namespace, as far as known."""
        self.ready = False
        """Whether the directory has been read at least once."""
        self.latest: Snapshot = Snapshot([], {}, 0)
        """The result of the last look, for collectors that need the ranks. They run after the collector `ranks`."""
        self._lock = threading.Lock()
        self._histories: dict[Key, _History] = {}
        self._run_sums = RunSums(retention_seconds)
        self._rising = Rising((*COUNTERS, *WORDS))
        self._errors: Counter[str] = Counter()
        self._known: set[tuple[str, int, str]] = set()
        self._paths: list[str] = []
        self._found_dead: dict[FileKey, int] = {}
        self._ooms: dict[FileKey, OomKill | None] = {}

    def look(self) -> Snapshot:
        """Reads the directory. Counts and logs each problem that did not exist at the last look."""
        with self._lock:
            users = {key_of(rank.newest): rank.newest.uid for rank in self.latest.ranks}
            ledgers, problems = read_directory(self.directory, users=users, known=self._paths)
            self._paths = [ledger.path for ledger in ledgers]
            for ledger in ledgers:
                ledger.words["device_ns"] = device_ns(ledger)
            self._rising.keep(ledgers)
            self._count(problems)
            self._note_deaths(ledgers)
            self._note_ooms(ledgers)
            by_key: dict[Key, dict[FileKey, Ledger]] = {}
            for ledger in ledgers:
                by_key.setdefault(key_of(ledger), {})[ledger.path, ledger.created_unix_ns] = ledger
            unreadable = {problem.path for problem in problems if problem.reason != "died_mid_write"}
            present = {identity for read in by_key.values() for identity in read}
            ranks = [rank for key in sorted(by_key) if (rank := self._rank(key, by_key[key], present, unreadable))]
            self._forget(by_key.keys(), unreadable)
            self.ready = self.ready or not any(problem.reason == "directory" for problem in problems)
            errors = {reason: self._errors[reason] for reason in LEDGER_REASONS}
            runs = self._run_sums.update(ledgers, (rank.newest for rank in ranks))
            self.latest = Snapshot(ranks, errors, time.monotonic_ns(), runs)
            return self.latest

    def _note_deaths(self, ledgers: Iterable[Ledger]) -> None:
        """Notes when killed ranks were found dead. Remembers it itself if it may not write to the directory."""
        now, before = time.monotonic_ns(), self._found_dead
        self._found_dead = {}
        for ledger in ledgers:
            if ledger.death_unnoted:
                with contextlib.suppress(OSError):
                    note_death(ledger.path, ledger.uid)
                identity = ledger.path, ledger.created_unix_ns
                ledger.found_dead_ns = self._found_dead[identity] = before.get(identity, now)

    def _note_ooms(self, ledgers: Iterable[Ledger]) -> None:
        """Asks the kernel once about each killed rank, because its log is short."""
        over = {(one.path, one.created_unix_ns): one for one in ledgers if not one.alive and not one.ended}
        fresh = [one for identity, one in over.items() if one.oom is None and identity not in self._ooms]
        found = oom_kills_of(fresh, self._roots, self.pids) if fresh else {}
        for ledger in fresh:
            if (oom := found.get(ledger.path)) is not None:
                with contextlib.suppress(OSError):
                    note_oom(ledger.path, oom)
        self._ooms = {identity: found.get(identity[0], self._ooms.get(identity)) for identity in over}
        for identity, ledger in over.items():
            ledger.oom = ledger.oom or self._ooms[identity]
        for path in self.pids.keys() - {ledger.path for ledger in ledgers}:
            del self.pids[path]

    def _count(self, problems: list[Problem]) -> None:
        """Counts and logs new problems. Remembers only current problems, so that memory stays bounded."""
        now = {(problem.path, problem.inode, problem.reason): problem for problem in problems}
        for seen, problem in now.items():
            if seen not in self._known:
                self._errors[problem.reason] += 1
                if self._log:
                    self._log.warning("a ledger is unusable", reason=problem.reason, detail=problem.detail)
        self._known = set(now)

    def _rank(self, key: Key, read: dict[FileKey, Ledger], present: Set[FileKey], unreadable: set[str]) -> Rank | None:
        newest = max(read.values(), key=age)
        history = self._histories.get(key)
        if history is None or history.uid != newest.uid:
            history = _History(newest.uid)
        history.update(read, present, self.retention_seconds)
        self._histories[key] = history
        if newest.ended_seconds > self.retention_seconds:
            return None
        if any(path in unreadable and age(old) > age(newest) for (path, _), old in history.attempts.items()):
            return None
        return Rank(newest, history.totals(), history.groups())

    def _forget(self, present: Iterable[Key], unreadable: set[str]) -> None:
        """Forgets ranks that are gone. If a rank's ledger is only unreadable at the moment, its sums are kept."""
        for key in self._histories.keys() - set(present):
            if not any(path in unreadable for path, _ in self._histories[key].attempts):
                del self._histories[key]
