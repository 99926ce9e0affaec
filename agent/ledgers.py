"""From a directory of ledgers to ranks: restarts summed up, ended ranks kept for a while, errors counted once."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..ledger.directory import Key, Problem, age, key_of, read_directory
from ..ledger.layout import GROUP_LABELS
from ..ledger.reader import LEDGER_REASONS, Ledger
from .log import Log
from .metrics.ranks import GROUP_PARTS, METRICS
from .run_sums import FileKey, Place, RunSums, Sums, add

COUNTERS: tuple[str, ...] = (
    *(metric.source for metric in METRICS if metric.type in ("counter", "histogram") and metric.source[0] != "<"),
    "step_ns",
)
"""The words of a ledger that only grow, and that are summed over the attempts of a rank."""

GROUP_WORDS: tuple[str, ...] = (*(f"slot_{part}_ns" for part in GROUP_PARTS), "slot_calls")
"""What a ledger counts of each process group, in words that have an entry per slot."""
MOST_GROUPS = 64
"""Labels of groups that are kept apart for one rank: a ledger is untrusted input, and restarts may bring new ones."""
OTHER_GROUPS = "other"

Totals = dict[str, tuple[int, ...]]
Groups = dict[str, tuple[int, ...]]
"""Label of a process group -> :data:`GROUP_WORDS`."""


@dataclass(slots=True)
class Rank:
    """One rank of one run: its newest attempt, and its counters summed over all attempts seen."""

    newest: Ledger
    totals: Totals
    groups: Groups


@dataclass(slots=True)
class Snapshot:
    """What one look at the directory found."""

    ranks: list[Rank]
    errors: dict[str, int]  # reason -> bad ledgers ever seen; every reason is there
    now_ns: int
    runs: dict[Place, Sums] = field(default_factory=dict)
    """What all ranks of a run have counted on this node."""


@dataclass(slots=True)
class _History:
    """What the agent remembers of one rank, so that its counters never fall while any attempt of it is exported.

    The ledger of an ended attempt is removed some day; its share of the counters is then kept in ``base``.
    """

    uid: int
    base: Totals = field(default_factory=dict)
    base_groups: Groups = field(default_factory=dict)
    attempts: dict[FileKey, Ledger] = field(default_factory=dict)

    def update(self, read: dict[FileKey, Ledger]) -> None:
        for identity in self.attempts.keys() - read.keys():
            if not os.path.lexists(identity[0]):
                ended = self.attempts.pop(identity)
                self.base = add(self.base, ended, COUNTERS)
                self.base_groups = add_groups(self.base_groups, ended)
        self.attempts.update(read)

    def totals(self) -> Totals:
        totals = self.base
        for ledger in self.attempts.values():
            totals = add(totals, ledger, COUNTERS)
        return totals

    def groups(self) -> Groups:
        groups = self.base_groups
        for ledger in self.attempts.values():
            groups = add_groups(groups, ledger)
        return groups


def add_groups(groups: Groups, ledger: Ledger) -> Groups:
    """The counters of the process groups of one more attempt on top of ``groups``. Slots of one label are one group."""
    total = dict(groups)
    for slot, name in enumerate(GROUP_LABELS):
        label = ledger.strings[name]
        if not label:
            continue
        if label not in total and len(total) >= MOST_GROUPS:
            label = OTHER_GROUPS
        before = total.get(label) or (0,) * len(GROUP_WORDS)
        total[label] = tuple(a + ledger.words[word][slot] for a, word in zip(before, GROUP_WORDS, strict=True))
    return total


def rank_labels(ledger: Ledger) -> tuple[str, str, str]:
    """The labels that tell a rank from all others, as declared in :data:`metrics.ranks.RANK`."""
    return ledger.owner, ledger.run, str(ledger.rank)


def rank_name(ledger: Ledger) -> str:
    """A rank in messages and in the label `device` of read errors."""
    return "/".join(rank_labels(ledger))


class LedgerStore:
    """The ranks of one directory, read anew at each look. Safe to use from several threads.

    An ended rank stays for ``retention_seconds`` after its last sign of life and is then forgotten, as is a rank whose
    newest ledger cannot be read: what is not known now is absent, not repeated.
    """

    def __init__(self, directory: str, retention_seconds: float, log: Log | None = None):
        self.directory = directory
        self.retention_seconds = retention_seconds
        self._log = log
        self.ready = False
        """Whether the directory has been read at least once."""
        self.latest: Snapshot = Snapshot([], {}, 0)
        """What the last look found: for collectors that need to know the ranks and come after `ranks`."""
        self._lock = threading.Lock()
        self._histories: dict[Key, _History] = {}
        self._run_sums = RunSums(retention_seconds)
        self._errors: Counter[str] = Counter()
        self._known: set[tuple[str, int, str]] = set()
        self._paths: list[str] = []

    def look(self) -> Snapshot:
        """Reads the directory. A problem that was not there at the last look is counted and logged."""
        with self._lock:
            users = {key_of(rank.newest): rank.newest.uid for rank in self.latest.ranks}
            ledgers, problems = read_directory(self.directory, users=users, known=self._paths)
            self._paths = [ledger.path for ledger in ledgers]
            self._count(problems)
            by_key: dict[Key, dict[FileKey, Ledger]] = {}
            for ledger in ledgers:
                by_key.setdefault(key_of(ledger), {})[ledger.path, ledger.created_unix_ns] = ledger
            unreadable = {problem.path for problem in problems if problem.reason != "died_mid_write"}
            ranks = [rank for key in sorted(by_key) if (rank := self._rank(key, by_key[key], unreadable))]
            self._forget(by_key.keys(), unreadable)
            self.ready = self.ready or not any(problem.reason == "directory" for problem in problems)
            errors = {reason: self._errors[reason] for reason in LEDGER_REASONS}
            runs = self._run_sums.update(ledgers, (rank.newest for rank in ranks))
            self.latest = Snapshot(ranks, errors, time.monotonic_ns(), runs)
            return self.latest

    def _count(self, problems: list[Problem]) -> None:
        """Counts what is new. Only what is still wrong is remembered, so that the memory is bounded."""
        now = {(problem.path, problem.inode, problem.reason): problem for problem in problems}
        for seen, problem in now.items():
            if seen not in self._known:
                self._errors[problem.reason] += 1
                if self._log:
                    self._log.warning("a ledger is unusable", reason=problem.reason, detail=problem.detail)
        self._known = set(now)

    def _rank(self, key: Key, read: dict[FileKey, Ledger], unreadable: set[str]) -> Rank | None:
        newest = max(read.values(), key=age)
        history = self._histories.get(key)
        if history is None or history.uid != newest.uid:
            history = _History(newest.uid)
        if not newest.alive and newest.idle_seconds > self.retention_seconds:
            self._histories.pop(key, None)
            return None
        history.update(read)
        self._histories[key] = history
        if any(path in unreadable and age(old) > age(newest) for (path, _), old in history.attempts.items()):
            return None
        return Rank(newest, history.totals(), history.groups())

    def _forget(self, present: Iterable[Key], unreadable: set[str]) -> None:
        """Drops ranks that are gone; one whose ledger is merely unreadable just now comes back with its sums."""
        for key in self._histories.keys() - set(present):
            if not any(path in unreadable for path, _ in self._histories[key].attempts):
                del self._histories[key]
