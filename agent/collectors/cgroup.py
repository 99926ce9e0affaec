"""The collector `cgroup`: pressure, CPU throttling and memory of the ranks' control groups."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ...linux import cgroups
from ...linux.cgroups import UNIFIED
from ..collector import Options
from ..files import KeptFiles, Unreadable, number
from ..kernel.cgroup_tree import Cgroup, CgroupTree
from ..ledgers import rank_labels
from ..metrics import cgroup as metrics
from ..metrics.metric import Metric
from ..parsers import psi
from ..processes.rank_processes import RankProcess
from ..reading import Absent, Reading

REFRESH_SECONDS = 60.0
"""How long the result of looking up a group, its files and its limits is reused."""
GROUPS = 128
"""The maximum number of groups that are read."""
_GONE = ("missing", "gone")
_BLIND = (
    "the control groups of some ranks",
    "the agent's cgroup namespace and its /sys do not show them",
    "give the agent the host's /sys with --path.sysfs (or the host's cgroup namespace)",
)

Take = Callable[[Reading, str, bytes], None]


def create(options: Options) -> CgroupCollector:
    return CgroupCollector(options)


@dataclass(slots=True)
class _Group:
    """A group that is read, with its existing files and the functions that parse them."""

    path: str
    files: list[tuple[str, Take]]
    directories: list[str]


@dataclass(slots=True)
class _Place:
    """The groups of a rank, looked up from the content of its cgroup file."""

    until: float
    groups: list[tuple[str, str]] = field(default_factory=list)  # path, level
    seen: bool = True


class CgroupCollector:
    """Reads each group once, however many ranks are in it."""

    def __init__(self, options: Options):
        self._processes = options.processes
        self._procfs = options.roots.procfs
        self._tree = CgroupTree(options.roots.sysfs)
        self._kept = KeptFiles(GROUPS * 16)
        self._places: dict[tuple[int, bytes], _Place] = {}
        self._groups: dict[str, _Group] = {}

    def collect(self, reading: Reading) -> None:
        ranks = self._processes.look()
        if not ranks:
            self._forget({}, set())
            raise Absent("a live rank")
        now = time.monotonic()
        places: dict[tuple[int, bytes], _Place] = {}
        used: set[str] = set()
        for rank in ranks:
            self._place(reading, rank, now, places, used)
        for path in sorted(used):
            self._read(reading, self._groups[path])
        self._forget(places, used)

    def _place(
        self, reading: Reading, rank: RankProcess, now: float, places: dict[tuple[int, bytes], _Place], used: set[str]
    ) -> None:
        ledger = rank.ledger
        name = rank_labels(ledger)
        try:
            data = self._kept.attribute(f"{self._procfs}/{rank.pid}/cgroup")
            key = (rank.pid, data)
            place = self._places.get(key)
            if place is None or now >= place.until:
                place = self._look_up(cgroups.paths(data), rank.pid, now)
        except Unreadable as error:
            if error.reason not in _GONE:
                reading.error("/".join(name), "cgroup", error.reason)
            return
        places[key] = place
        if not place.seen:
            reading.blind(*_BLIND)
        for path, level in place.groups:
            if path not in used and len(used) >= GROUPS:
                reading.error("", "cgroup", "huge")
                del places[key]  # its groups are forgotten, and learned again if there is room
                return
            used.add(path)
            reading.add(metrics.INFO, (*name, path, level), 1)

    def _look_up(self, paths: dict[str, str], pid: int, now: float) -> _Place:
        place = _Place(now + REFRESH_SECONDS)
        try:
            own = self._tree.locate(paths, pid)
        except Unreadable:
            place.seen = False
            return place
        for group in own:
            place.groups.append((group.path, "own"))
            self._learn(group)
        for group in own:
            for above in self._tree.above(group):
                if above.path not in (path for path, _ in place.groups) and self._limits(above):
                    place.groups.append((above.path, "above"))
                    self._learn(above)
        return place

    def _learn(self, group: Cgroup) -> None:
        """Finds out which of the known files the group has. This depends on the kernel and the controllers."""
        files: list[tuple[str, Take]] = []
        for controller, directory in group.directories.items():
            try:
                there = set(os.listdir(directory))
            except OSError:
                continue
            files += [(f"{directory}/{name}", take) for name, take in _FILES[controller].items() if name in there]
            if controller == "cpu" and "cpu.cfs_quota_us" in there:
                files.append((f"{directory}/cpu.cfs_quota_us", partial(self._quota, f"{directory}/cpu.cfs_period_us")))
        self._groups[group.path] = _Group(group.path, files, list(group.directories.values()))

    def _limits(self, group: Cgroup) -> bool:
        """Whether the group itself sets a limit."""
        for controller, directory in group.directories.items():
            for name, limit in _LIMITS[controller].items():
                try:
                    if limit(self._kept.attribute(f"{directory}/{name}")) is not None:
                        return True
                except Unreadable as error:
                    if error.reason not in _GONE:
                        return True  # so that the group is read, and the error is reported then
                finally:
                    self._kept.drop(f"{directory}/{name}")
        return False

    def _read(self, reading: Reading, group: _Group) -> None:
        for path, take in group.files:
            try:
                take(reading, group.path, self._kept.attribute(path))
            except Unreadable as error:
                if error.reason in _GONE and not os.path.isdir(os.path.dirname(path)):
                    continue  # the whole group is gone
                reading.error(group.path, os.path.basename(path), error.reason)

    def _quota(self, period_path: str, reading: Reading, path: str, data: bytes) -> None:
        """Adds the CPU limit of a cgroup v1, which has the quota and its period in two files."""
        if (quota := cgroups.cfs_quota(data)) is not None and (period := number(self._kept.attribute(period_path))):
            reading.add(metrics.CPU_LIMIT, (path,), quota / period)

    def _forget(self, places: dict[tuple[int, bytes], _Place], used: set[str]) -> None:
        for pid in {pid for pid, _ in self._places} - {pid for pid, _ in places}:
            self._kept.drop(f"{self._procfs}/{pid}/cgroup")
        self._places = places
        for path in self._groups.keys() - used:
            for directory in self._groups.pop(path).directories:
                for name in _NAMES:
                    self._kept.drop(f"{directory}/{name}")


def _pressure(resource: str) -> Take:
    def take(reading: Reading, path: str, data: bytes) -> None:
        for kind, stalled in psi.parse(data).items():
            reading.add(metrics.STALLED, (path, resource, kind), metrics.STALLED.base(stalled))

    return take


def _cpu_stat(reading: Reading, path: str, data: bytes) -> None:
    """Adds the values of cpu.stat of cgroup v1 or v2. Only v1 has the word throttled_time, in ns."""
    found = cgroups.keyed(data)
    for word, metric in _CPU_STAT.items():
        if word in found:
            reading.add(metric, (path,), metric.base(found[word]))
    if "throttled_time" in found:
        reading.add(metrics.THROTTLED, (path,), found["throttled_time"] / 1e9)


_CPU_STAT: dict[str, Metric] = {
    "usage_usec": metrics.CPU,
    "nr_periods": metrics.PERIODS,
    "nr_throttled": metrics.THROTTLED_PERIODS,
    "throttled_usec": metrics.THROTTLED,
}


def _cpu_max(reading: Reading, path: str, data: bytes) -> None:
    if (cpus := cgroups.cpu_max(data)) is not None:
        reading.add(metrics.CPU_LIMIT, (path,), cpus)


def _cpuacct(reading: Reading, path: str, data: bytes) -> None:
    reading.add(metrics.CPU, (path,), number(data) / 1e9)


def _memory(reading: Reading, path: str, data: bytes) -> None:
    reading.add(metrics.MEMORY, (path,), number(data))


def _memory_limit(reading: Reading, path: str, data: bytes) -> None:
    if (limit := cgroups.limit(data)) is not None:
        reading.add(metrics.MEMORY_LIMIT, (path,), limit)


def _memory_events(reading: Reading, path: str, data: bytes) -> None:
    for event, count in cgroups.keyed(data).items():
        if event in ("high", "max", "oom_kill"):
            reading.add(metrics.MEMORY_EVENTS, (path, event), count)


_FILES: dict[str, dict[str, Take]] = {
    UNIFIED: {
        "cpu.pressure": _pressure("cpu"),
        "io.pressure": _pressure("io"),
        "memory.pressure": _pressure("memory"),
        "cpu.stat": _cpu_stat,
        "cpu.max": _cpu_max,
        "memory.current": _memory,
        "memory.max": _memory_limit,
        "memory.events": _memory_events,
    },
    "cpu": {"cpu.stat": _cpu_stat},
    "cpuacct": {"cpuacct.usage": _cpuacct},
    "memory": {
        "memory.usage_in_bytes": _memory,
        "memory.limit_in_bytes": _memory_limit,
        "memory.oom_control": _memory_events,
    },
}
_LIMITS: dict[str, dict[str, Callable[[bytes], float | None]]] = {
    UNIFIED: {"cpu.max": cgroups.cpu_max, "memory.max": cgroups.limit},
    "cpu": {"cpu.cfs_quota_us": cgroups.cfs_quota},
    "cpuacct": {},
    "memory": {"memory.limit_in_bytes": cgroups.limit},
}
_NAMES = sorted({name for files in (*_FILES.values(), *_LIMITS.values()) for name in files} | {"cpu.cfs_period_us"})
