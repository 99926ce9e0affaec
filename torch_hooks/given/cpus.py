"""Which CPUs the rank and its data workers may use, and how much of them they use. Run by the watcher.

Sources: sched_getaffinity(2), cpu.max and cpu.stat of control groups
(https://docs.kernel.org/admin-guide/cgroup-v2.html, .../scheduler/sched-bwc.html)
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from typing import NamedTuple

from ...ledger.given import GIVEN_STRINGS, GIVEN_WORDS, QUOTA_ABOVE, QUOTA_INSIDE
from ...ledger.layout import WORD_AT
from ...linux.cgroups import cfs_quota, cpu_max, keyed
from ...linux.cpu_lists import cpus_in, listed
from ...linux.unreadable import Unreadable, number
from ..beside.node import ranks_in
from ..beside.own import children, tree_cpu
from ..meters.source import children as multiprocessing_children
from ..proc import read_bytes, reaped_ns
from .groups import container_of, folders, read

PERIOD_SECONDS = 2.0
_FIND_EVERY = 5
"""Runs between two searches for the least quota."""
_MOST_WORKERS = 64
_AT = {name: WORD_AT[name][0] for name in GIVEN_WORDS}
_WINDOW = WORD_AT["window_ns"][0]


_MORE, _SOME = 2, 20
"""The quota that is told changes to that of another group if that one was throttled in _MORE times as many periods, and
in more than _SOME."""


class Quota(NamedTuple):
    folder: str
    cpus: float
    of: int
    """As `cpu_quota_of`."""


class Spent(NamedTuple):
    """Cumulative. Times in ns."""

    given_ns: int
    used_cpu_ns: int
    worker_cpu_ns: int
    cpu_periods: int = 0
    cpu_throttled_periods: int = 0
    cpu_throttled_ns: int = 0


class CpuProbe:
    """Writes the words and strings of CPUs."""

    def __init__(
        self,
        words: memoryview[int],
        write: Callable[[str, str], object],
        tid: int,
        at_start: frozenset[int],
        workers: set[int],
        directory: str = "",
    ):
        """``tid``: the training thread. ``at_start``: the CPUs that it was allowed at first. ``workers``: the data
        workers; those that have ended are removed. ``directory``: where the ledgers are."""
        self._words, self._write, self._tid, self._workers = words, write, tid, workers
        self._directory = directory
        self._children: set[int] = set()  # workers that this process has started
        self._others: dict[int, int] = {}  # those that a fork server has started -> CPU ns when they were seen last
        self._others_ns = 0  # the CPU time of those that have ended: nobody tells this process
        self._ended: set[int] = set()  # workers that had ended at the last look
        self._quota: Quota | None = None
        self._first: dict[str, int] = {}  # throttled periods of each group at the first look
        self._other_group = False
        self._runs = 0
        self._base: Spent | None = None
        self._most = Spent(0, 0, 0)
        self._lists: dict[str, frozenset[int]] = {}
        words[_AT["cpus_node"]] = os.cpu_count() or 0
        words[_AT["cpus_at_start"]] = words[_AT["cpus_allowed"]] = len(at_start)
        words[_AT["cpus_of_group"]] = cpus_of_group()
        self._tell("cpu_list", at_start)

    def look(self) -> None:
        words = self._words
        try:
            allowed = frozenset(os.sched_getaffinity(self._tid))
        except ProcessLookupError:  # the training thread has ended, and the process goes on
            return
        if len(allowed) != words[_AT["cpus_allowed"]]:
            words[_AT["cpus_changed_ns"]] = time.monotonic_ns()
            words[_AT["cpus_allowed"]] = len(allowed)
        self._tell("cpu_list", allowed)
        if self._runs % _FIND_EVERY == 0:
            self._find_quota()
        self._runs += 1
        cpu, threads, together = 0, 0, frozenset[int]()
        seen = 0
        for pid in list(self._workers):
            if seen >= _MOST_WORKERS:
                break
            try:
                # With the programs that it runs, such as a decoder of each sample.
                used = reaped_ns(pid) + (tree_cpu(pid, depth=1) or 0)  # in this order none counts twice
                its = frozenset(os.sched_getaffinity(pid))
                threads = max(threads, os.stat(f"/proc/{pid}/task").st_nlink - 2)
            except OSError:  # it has ended
                self._has_ended(pid)
                continue
            if pid not in self._children and (pid in self._others or not _is_child(pid)):
                self._others[pid] = used
            else:
                self._children.add(pid)
            cpu, seen = cpu + used, seen + 1
            together |= its  # each worker may be bound to a different CPU
        if together:
            words[_AT["worker_cpus"]], words[_AT["worker_threads"]] = len(together), threads
            self._tell("worker_cpu_list", together)
        started = {*multiprocessing_children(), *children(os.getpid())} - self._workers
        if started:
            started -= ranks_in(self._directory)  # they count for themselves
        self._count(cpu + self._others_ns, sum(tree_cpu(pid, depth=0) or 0 for pid in started))

    def _has_ended(self, pid: int) -> None:
        """Others may still compare the workers with those before, so it is removed at the second look."""
        if pid not in self._ended:
            self._ended.add(pid)
            self._others_ns += self._others.pop(pid, 0)
            self._children.discard(pid)
        else:
            self._ended.discard(pid)
            self._workers.discard(pid)

    def _tell(self, name: str, cpus: frozenset[int]) -> None:
        if self._lists.get(name) != cpus:
            self._lists[name] = cpus
            self._write(name, fitting(cpus, GIVEN_STRINGS[name]))

    def _find_quota(self) -> None:
        found = folders("cpu")
        container = len(container_of(found))
        quotas = [
            Quota(folder, cpus, QUOTA_ABOVE * (folder != found[0]) + QUOTA_INSIDE * (len(folder) > container))
            for folder in found
            if (cpus := quota_of(folder))
        ]
        least = self._worst(quotas)
        if (least and least.folder) != (self._quota and self._quota.folder):
            self._other_group = True
        self._quota, words = least, self._words
        words[_AT["cpu_quota_milli"]] = round(1000 * least.cpus) if least else 0
        words[_AT["cpu_quota_of"]] = least.of if least else 0
        try:
            words[_AT["cpu_quota_id"]] = os.stat(least.folder).st_ino if least else 0
        except OSError:  # the group is gone
            words[_AT["cpu_quota_id"]] = 0

    def _count(self, live_ns: int, started_ns: int) -> None:
        """``live_ns``: CPU time of the data workers that live, and of those that had another parent. ``started_ns``:
        that of other processes that this one has started, such as the loop's own augmenters."""
        if not self._words[_WINDOW]:
            return
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        workers = live_ns + round(1e9 * (ended.ru_utime + ended.ru_stime))
        quota = _throttled(self._quota.folder) if self._quota is not None else (0, 0, 0)
        now = Spent(time.monotonic_ns(), time.process_time_ns() + workers + started_ns, workers, *quota)
        if self._base is None:
            self._base = now
        if self._other_group:  # what it has counted before is not of this run
            self._other_group = False
            self._base, self._most = self._base._replace(**_quota(now)), self._most._replace(**_quota(Spent(0, 0, 0)))
        # A worker that has ended is in neither of its two terms until the loop has waited for it.
        spent = Spent(*(max(0, new - old) for new, old in zip(now, self._base, strict=True)))
        self._most = Spent(*map(max, spent, self._most))
        for name, value in zip(Spent._fields, self._most, strict=True):
            self._words[_AT[name]] = value

    def _worst(self, quotas: list[Quota]) -> Quota | None:
        """The smallest one, mostly. A group above may have a larger one, and more processes that use it up."""
        stopped = {quota.folder: self._stopped(quota.folder) for quota in quotas}
        worst = min(quotas, key=lambda quota: (-stopped[quota.folder], quota.cpus), default=None)
        now = next((quota for quota in quotas if self._quota and quota.folder == self._quota.folder), None)
        if worst is None or now is None or worst.cpus < now.cpus:
            return worst
        return worst if stopped[worst.folder] > max(_SOME, _MORE * stopped[now.folder]) else now

    def _stopped(self, folder: str) -> int:
        """In how many periods a group was throttled since this was asked first."""
        throttled = _throttled(folder)[1]
        return max(0, throttled - self._first.setdefault(folder, throttled))


def _throttled(folder: str) -> tuple[int, int, int]:
    """The periods of a group, in how many of them it was throttled, and for how many ns; zeros if it is not known."""
    try:
        stat = keyed(read(f"{folder}/cpu.stat"))
    except Unreadable:
        return 0, 0, 0
    ns = stat["throttled_time"] if "throttled_time" in stat else 1000 * stat.get("throttled_usec", 0)
    return stat.get("nr_periods", 0), stat.get("nr_throttled", 0), ns


def _quota(spent: Spent) -> dict[str, int]:
    return {name: getattr(spent, name) for name in Spent._fields[3:]}


def _is_child(pid: int) -> bool:
    """Whether this process has started another one; also if that is not known."""
    _, _, rest = read_bytes(f"/proc/{pid}/stat", 512).rpartition(b") ")  # the name may have any characters
    fields = rest.split()
    return len(fields) < 2 or int(fields[1]) == os.getpid()


def quota_of(folder: str) -> float | None:
    """How many CPUs a group may use. None if it has no quota, or cannot be read."""
    try:
        if os.path.exists(f"{folder}/cpu.max"):
            return cpu_max(read(f"{folder}/cpu.max"))
        quota, period = cfs_quota(read(f"{folder}/cpu.cfs_quota_us")), number(read(f"{folder}/cpu.cfs_period_us"))
        return quota / period if quota and period else None
    except Unreadable:
        return None


def cpus_of_group() -> int:
    """How many CPUs this process's control group may use, whatever has bound the process to fewer; 0: not known."""
    for folder in folders("cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):
            try:
                return len(cpus_in(read(f"{folder}/{name}").decode("ascii", "replace").strip()))
            except Unreadable:
                continue
    return 0


def fitting(cpus: frozenset[int], size: int) -> str:
    """CPUs as a list of at most ``size`` characters. On a node with two sockets, those of one may be every second one:
    `0-62:1/2`, as the kernel writes it (https://docs.kernel.org/admin-guide/kernel-parameters.html). If a list is
    still too long, its first CPUs are missing."""
    text = listed(cpus)
    if len(text) <= size:
        return text
    each = sorted(cpus)
    apart = each[1] - each[0]
    if each == [*range(each[0], each[-1] + 1, apart)]:
        return f"{each[0]}-{each[-1]}:1/{apart}"
    return text[-size:].partition(",")[2]
