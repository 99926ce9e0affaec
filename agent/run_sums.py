"""Sums the counters of all ranks of a run on this node. The sums do not fall while the run is known.

The sums contain the ledgers of ranks that live or ended recently, those of ranks that ended not long before these
began, and so on. They depend on ledgers only, so an agent that restarts gets the same sums, as long as the ledgers of
ended ranks still exist.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from ..ledger.reader import Ledger
from .group_sums import Groups, add_groups, of_run
from .metrics.runs import SUMS
from .mounts_links import Labelled, add_links, add_mounts

WORDS: tuple[str, ...] = tuple(metric.source for metric in SUMS)
"""The words of a ledger that are summed."""

Place = tuple[str, str, str]  # owner, run, node: metrics.runs.RUN_PLACE
Sums = dict[str, tuple[int, ...]]
FileKey = tuple[str, int]  # path and creation time (Unix ns), because a path can be reused


class RunCounters(NamedTuple):
    """The counters of a run, summed over its ranks on one node."""

    sums: Sums
    groups: Groups
    """Label of a process group -> the counters of group_sums.of_run."""
    mounts: Labelled
    """Mount point and type of the file system -> the counters of mounts_links.of_mount."""
    links: Labelled
    """Kind and name of a link -> the counters of mounts_links.of_link."""

    def plus(self, ledger: Ledger) -> RunCounters:
        return RunCounters(
            add(self.sums, ledger, WORDS),
            add_groups(self.groups, ledger, of_run),
            add_mounts(self.mounts, ledger),
            add_links(self.links, ledger),
        )


NOTHING = RunCounters({}, {}, {}, {})


@dataclass(slots=True)
class _Run:
    """The ledgers that are part of a run's sum, as last read, and the sum of those that have been removed."""

    counted: dict[FileKey, Ledger] = field(default_factory=dict)
    removed: RunCounters = NOTHING

    def update(self, read: dict[FileKey, Ledger], present: Set[FileKey], retention_seconds: float) -> None:
        for identity in self.counted.keys() - read.keys():
            if identity in present:  # its run has another name now
                del self.counted[identity]
            elif not os.path.lexists(identity[0]):
                self.removed = self.removed.plus(self.counted.pop(identity))
        chain = chain_of(read, retention_seconds)
        self.counted.update((each, read[each]) for each in read if each in self.counted or each in chain)

    def counters(self) -> RunCounters:
        total = self.removed
        for ledger in self.counted.values():
            total = total.plus(ledger)
        return total


def add(sums: Sums, ledger: Ledger, words: tuple[str, ...]) -> Sums:
    """``sums`` plus these words of one more ledger."""
    if not sums:
        return {word: ledger.words[word] for word in words}
    return {word: tuple(map(int.__add__, sums[word], ledger.words[word])) for word in words}


def chain_of(read: dict[FileKey, Ledger], retention_seconds: float) -> set[FileKey]:
    """The ledgers of ranks that live or ended within the retention, and, repeatedly, of ranks that ended at most the
    retention before the first of these began.
    """
    now = time.monotonic_ns()
    ended = {identity: ledger.ended_seconds for identity, ledger in read.items()}
    chain: set[FileKey] = set()
    began = 0.0
    for identity in sorted(read, key=ended.__getitem__):
        if ended[identity] - began > retention_seconds:
            break
        chain.add(identity)
        began = max(began, (now - read[identity].start_ns) / 1e9)
    return chain


class RunSums:
    """The sums of all runs of a directory. A run that ended longer ago than the retention is forgotten."""

    def __init__(self, retention_seconds: float):
        self.retention_seconds = retention_seconds
        self._runs: dict[Place, _Run] = {}

    def update(self, ledgers: Iterable[Ledger], shown: Iterable[Ledger]) -> dict[Place, RunCounters]:
        """The sums of the runs to which the ledgers ``shown`` belong. ``ledgers`` are all readable ledgers."""
        read: dict[Place, dict[FileKey, Ledger]] = {}
        for ledger in ledgers:
            read.setdefault(place_of(ledger), {})[ledger.path, ledger.created_unix_ns] = ledger
        present = {identity for of_run in read.values() for identity in of_run}
        found: dict[Place, _Run] = {}
        for place in sorted({place_of(ledger) for ledger in shown}):
            run = found[place] = self._runs.get(place) or _Run()
            run.update(read[place], present, self.retention_seconds)
        unreadable = {
            place: run for place, run in self._runs.items() if place not in found and _some_left(run, present)
        }
        self._runs = {**unreadable, **found}
        return {place: run.counters() for place, run in found.items()}


def place_of(ledger: Ledger) -> Place:
    """The run and the node of a ledger."""
    return ledger.owner, ledger.run, ledger.node


def _some_left(run: _Run, present: Set[FileKey]) -> bool:
    """Whether a ledger of the run still exists but cannot be read at the moment."""
    return any(identity not in present and os.path.lexists(identity[0]) for identity in run.counted)
