"""Finds the descendants of processes: a rank's data loader workers, and the processes that they started.

`/proc/<pid>/task/<tid>/children` (CONFIG_PROC_CHILDREN) lists the children that one thread has started. A training
process has about 100 threads, of which one or two start children. So threads that are known to have children are read
each time, and the others at growing intervals. Without that file, the parents of all processes are read instead.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ..files import KeptFiles, Unreadable, names, read
from ..parsers import pidstat

WORKERS = 256
"""The maximum number of descendants per process."""
THREADS = 512
FIRST_PAUSE_SECONDS = 15.0
LAST_PAUSE_SECONDS = 600.0
PARENTS_SECONDS = 15.0
"""How long the table of all processes' parents is reused."""
PROCESSES = 1 << 16
_KEPT = 512
_NO_SUCH = ("missing", "gone")


@dataclass(slots=True)
class _Process:
    """What is known about one process: the threads that started children, and when to read the others again."""

    parents: set[str] = field(default_factory=set)
    due: float = 0.0
    pause: float = FIRST_PAUSE_SECONDS


class Descendants:
    """Finds descendants, and remembers which threads have children. Not thread-safe."""

    def __init__(self, procfs: str):
        self._procfs = procfs
        self._kept = KeptFiles(_KEPT)
        self._known: dict[int, _Process] = {}
        self._listed = True  # whether the kernel has the file `children`, as far as is known
        self._table: dict[int, list[int]] = {}
        self._table_due = 0.0

    def of(self, pids: Iterable[int]) -> dict[int, tuple[int, ...] | Unreadable]:
        """The descendants of each process, at most WORKERS, nearest first, or the error if they cannot be read.

        If one of ``pids`` descends from another, it and its descendants do not count as descendants of the other.
        """
        pids = list(dict.fromkeys(pids))
        now = time.monotonic()
        found: dict[int, tuple[int, ...] | Unreadable] = {}
        seen: set[int] = set(pids)
        for pid in pids:
            try:
                found[pid] = self._below(pid, seen, now)
            except Unreadable as error:
                found[pid] = error
        for gone in self._known.keys() - seen:
            self._forget(gone)
        return found

    def _below(self, top: int, seen: set[int], now: float) -> tuple[int, ...]:
        below: list[int] = []
        todo = [top]
        while todo:
            following: list[int] = []
            for pid in todo:
                for child in self._children(pid, top, now):
                    if child not in seen and len(below) < WORKERS:
                        seen.add(child)
                        below.append(child)
                        following.append(child)
            todo = following
        return tuple(below)

    def _children(self, pid: int, top: int, now: float) -> Collection[int]:
        if not self._listed:
            return self._from_table(pid, now)
        known = self._known.get(pid)
        if known is None:
            known = self._known[pid] = _Process()
            if pid == top:
                known.parents.add(str(pid))
        children: list[int] = []
        for thread in tuple(known.parents):
            children += self._of_thread(known, pid, thread, top)
        if now >= known.due:
            known.due = now + known.pause
            known.pause = min(known.pause * 2, LAST_PAUSE_SECONDS)
            for thread in self._other_threads(known, pid, top):
                if some := self._started_by(pid, thread):
                    known.parents.add(thread)
                    children += some
        return children if self._listed else self._from_table(pid, now)

    def _of_thread(self, known: _Process, pid: int, thread: str, top: int) -> list[int]:
        try:
            return pidstat.children(self._kept.text(self._path(pid, thread)))
        except Unreadable as error:
            if error.reason not in _NO_SUCH:
                raise
            if thread != str(pid):
                known.parents.discard(thread)  # the thread has ended, and another thread has its children now
                known.due = 0.0
            elif pid == top and self._lacks_children(pid):
                self._listed = False
            return []

    def _other_threads(self, known: _Process, pid: int, top: int) -> list[str]:
        """The threads that are not read each time. For processes other than the rank's, at most the main thread."""
        try:
            threads = names(f"{self._procfs}/{pid}/task")[:THREADS] if pid == top else [str(pid)]
        except Unreadable:
            return []
        return [thread for thread in threads if thread not in known.parents]

    def _started_by(self, pid: int, thread: str) -> list[int]:
        try:
            return pidstat.children(read(self._path(pid, thread)))
        except Unreadable as error:
            if error.reason not in _NO_SUCH:
                raise
            return []

    def _path(self, pid: int, thread: str) -> str:
        return f"{self._procfs}/{pid}/task/{thread}/children"

    def _lacks_children(self, pid: int) -> bool:
        """Whether the kernel has no file `children`. False if the process has ended."""
        try:
            return "children" not in names(f"{self._procfs}/{pid}/task/{pid}")
        except Unreadable:
            return False

    def _from_table(self, pid: int, now: float) -> Collection[int]:
        if now >= self._table_due:
            self._table_due = now + PARENTS_SECONDS
            self._table = self._parents()
        return self._table.get(pid, ())

    def _parents(self) -> dict[int, list[int]]:
        """Parent -> its children, for all processes. Raises Unreadable."""
        table: dict[int, list[int]] = {}
        for entry in [entry for entry in names(self._procfs) if entry.isdigit()][:PROCESSES]:
            try:
                stat = pidstat.parse(read(f"{self._procfs}/{entry}/stat"))
            except Unreadable:
                continue
            table.setdefault(stat.parent, []).append(int(entry))
        return table

    def _forget(self, pid: int) -> None:
        for thread in self._known.pop(pid).parents:
            self._kept.drop(self._path(pid, thread))
