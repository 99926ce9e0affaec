"""The collector `process`: resources that the processes of ranks and their workers use, and what they wait for."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from ...ledger.directory import Key, key_of
from ..collector import Options
from ..files import KeptFiles, Unreadable
from ..ledgers import rank_labels
from ..metrics import process as metrics
from ..parsers import pidio, pidstat
from ..parsers.pidstat import PidStat
from ..processes.rank_processes import RankProcess
from ..processes.rank_usage import RankWaits, Rising, Waits
from ..reading import Absent, Reading

KEPT = 1024
"""How many files are kept open, enough for about 340 processes. Further files are opened at each scrape."""
DENIED_SECONDS = 60.0
"""After this time, a file that could not be read for lack of permission is tried again."""

_TICKS = os.sysconf("SC_CLK_TCK")
_TICK_NS = 1_000_000_000 // _TICKS
_PAGE = os.sysconf("SC_PAGE_SIZE")
_GONE = ("missing", "gone")
_ROLES = ("main", "worker")

_DENIED = (
    "I/O of ranks",
    "only the owner of a process may read its /proc/<pid>/io",
    "run the agent as root (or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH), or as the user of the training",
)

Workers = dict[int, PidStat]
_Key = tuple[Key, int, int]  # rank, pid, start time


def create(options: Options) -> ProcessCollector:
    return ProcessCollector(options)


@dataclass(slots=True)
class _Rank:
    """What is kept about one rank's process between scrapes."""

    name: str
    rank: tuple[str, str, str]
    roles: tuple[tuple[str, str, str, str], ...]
    modes: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]  # by role: user, system
    user: Rising = field(default_factory=Rising)
    system: Rising = field(default_factory=Rising)
    faults: Rising = field(default_factory=Rising)
    io: tuple[Rising, ...] = field(default_factory=lambda: tuple(Rising() for _ in metrics.IO))
    waits: tuple[RankWaits, RankWaits] = field(default_factory=lambda: (RankWaits(), RankWaits()))
    samples: list[int] = field(default_factory=lambda: [0, 0])
    d_samples: list[int] = field(default_factory=lambda: [0, 0])
    denied_until: float = 0.0


class ProcessCollector:
    """Counters start at the start of the rank's process, not of the agent. A new attempt starts them at 0 again.

    If a file of a live worker cannot be read, the sums that would contain its values are absent.
    """

    def __init__(self, options: Options):
        self._processes = options.processes
        self._procfs = options.roots.procfs
        self._kept = KeptFiles(KEPT)
        self._paths: dict[int, tuple[str, str, str]] = {}
        self._ranks: dict[_Key, _Rank] = {}
        self._had: set[str] = set()  # files that have been read before, so this kernel has them

    def collect(self, reading: Reading) -> None:
        ranks = self._processes.look()
        self._processes.report(reading)
        if not ranks and not reading.blind_spots:
            self._keep([])
            raise Absent("a live rank")
        delays = self._delay_accounting()
        for rank in ranks:
            self._rank(reading, rank, delays)
        self._keep(ranks)

    def _rank(self, reading: Reading, process: RankProcess, delays: bool) -> None:
        kept = self._ranks.get(_key(process))
        if kept is None:
            kept = self._ranks[_key(process)] = _kept(process)
        try:
            main = pidstat.parse(self._read(process.pid, 0))
        except Unreadable as error:
            if error.reason not in _GONE:
                reading.error(kept.name, "stat", error.reason)
            return
        if main.start_ticks != process.ledger.pid_start_ticks:
            return  # the rank's process has ended, and another process has its pid now
        workers = self._workers(reading, process, kept)
        self._usage(reading, kept, main, workers)
        self._io(reading, kept, process.pid, workers)
        self._waits(reading, kept, {process.pid: main}, 0, delays)
        if workers is not None:
            self._waits(reading, kept, workers, 1, delays)

    def _workers(self, reading: Reading, process: RankProcess, kept: _Rank) -> Workers | None:
        """The live workers, or None if one of them cannot be read."""
        found: Workers = {}
        complete = process.workers_known
        for pid in process.workers:
            try:
                found[pid] = pidstat.parse(self._read(pid, 0))
            except Unreadable as error:
                if error.reason not in _GONE:
                    reading.error(kept.name, "stat", error.reason)
                    complete = False
        return found if complete else None

    def _usage(self, reading: Reading, kept: _Rank, main: PidStat, workers: Workers | None) -> None:
        """Adds the values of `/proc/<pid>/stat`."""
        self._levels(reading, kept, 0, [main])
        cpu = reading.series(metrics.CPU)
        user, system = kept.modes[0]
        cpu[user], cpu[system] = main.user_ticks / _TICKS, main.system_ticks / _TICKS
        if workers is None:
            return
        self._levels(reading, kept, 1, list(workers.values()))
        reading.add(metrics.WORKERS, kept.rank, len(workers))
        user_ticks, system_ticks = main.children_user_ticks, main.children_system_ticks
        faults = main.major_faults + main.children_major_faults
        for stat in workers.values():
            user_ticks += stat.user_ticks + stat.children_user_ticks
            system_ticks += stat.system_ticks + stat.children_system_ticks
            faults += stat.major_faults + stat.children_major_faults
        user, system = kept.modes[1]
        cpu[user] = kept.user.value(user_ticks) / _TICKS
        cpu[system] = kept.system.value(system_ticks) / _TICKS
        reading.add(metrics.MAJOR_FAULTS, kept.rank, kept.faults.value(faults))

    def _levels(self, reading: Reading, kept: _Rank, role: int, stats: list[PidStat]) -> None:
        labels = kept.roles[role]
        kept.samples[role] += len(stats)
        pages = threads = 0
        for stat in stats:
            pages += stat.resident_pages
            threads += stat.threads
            if stat.state == "D":
                kept.d_samples[role] += 1
        reading.add(metrics.RESIDENT, labels, pages * _PAGE)
        reading.add(metrics.THREADS, labels, threads)
        reading.add(metrics.STATE_SAMPLES, labels, kept.samples[role])
        reading.add(metrics.UNINTERRUPTIBLE, labels, kept.d_samples[role])

    def _io(self, reading: Reading, kept: _Rank, main: int, workers: Workers | None) -> None:
        if workers is None or time.monotonic() < kept.denied_until:
            return
        sums = [0, 0, 0, 0]
        for pid in (main, *workers):
            try:
                a, b, c, d = pidio.parse(self._read(pid, 2))
            except Unreadable as error:
                if error.reason == "denied":
                    kept.denied_until = time.monotonic() + DENIED_SECONDS
                    reading.blind(*_DENIED)
                    return
                if self._is_lost(reading, kept, "io", error, pid == main):
                    return
                continue
            sums[0] += a
            sums[1] += b
            sums[2] += c
            sums[3] += d
        self._had.add("io")
        for metric, rising, raw in zip(metrics.IO, kept.io, sums, strict=True):
            reading.add(metric, kept.rank, rising.value(raw))

    def _waits(self, reading: Reading, kept: _Rank, stats: Workers, role: int, delays: bool) -> None:
        waits = kept.waits[role]
        lost = False
        for pid, stat in stats.items():
            try:
                cpu_ns, runqueue_ns = pidio.schedstat(self._read(pid, 1))
            except Unreadable as error:
                lost = self._is_lost(reading, kept, "schedstat", error, role == 0) or lost
                continue
            if stat.state != "Z":  # a zombie no longer waits
                alive_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - stat.start_ticks * _TICK_NS
                blocked_ns = max(0, alive_ns - cpu_ns - runqueue_ns)
                waits.see(pid, stat.start_ticks, Waits(runqueue_ns, blocked_ns, stat.block_io_ticks))
            self._had.add("schedstat")
        waits.keep(stats)
        total = waits.total()
        if lost:
            return
        if delays and total.block_io_ticks:
            reading.add(metrics.BLOCK_IO, kept.roles[role], total.block_io_ticks / _TICKS)
        if "schedstat" in self._had:
            reading.add(metrics.RUNQUEUE, kept.roles[role], metrics.RUNQUEUE.base(total.runqueue_ns))
            reading.add(metrics.BLOCKED, kept.roles[role], metrics.BLOCKED.base(total.blocked_ns))

    def _is_lost(self, reading: Reading, kept: _Rank, file: str, error: Unreadable, main: bool) -> bool:
        """Whether the sum cannot be computed because of this file. It still can if a worker has just ended."""
        gone = error.reason in _GONE
        if not gone or (main and file in self._had):
            reading.error(kept.name, file, error.reason)
        return main or not gone

    def _read(self, pid: int, which: int) -> bytes:
        paths = self._paths.get(pid)
        if paths is None:
            base = f"{self._procfs}/{pid}"
            paths = self._paths[pid] = (f"{base}/stat", f"{base}/schedstat", f"{base}/io")
        return self._kept.attribute(paths[which])

    def _delay_accounting(self) -> bool:
        try:
            return self._kept.attribute(f"{self._procfs}/sys/kernel/task_delayacct").strip() == b"1"
        except Unreadable:  # a kernel before Linux 5.14, or built without delay accounting
            return False

    def _keep(self, ranks: list[RankProcess]) -> None:
        """Forgets ranks and processes that are gone."""
        pids = {pid for rank in ranks for pid in (rank.pid, *rank.workers)}
        for pid in [pid for pid in self._paths if pid not in pids]:
            for path in self._paths.pop(pid):
                self._kept.drop(path)
        keys = {_key(rank) for rank in ranks}
        for key in [key for key in self._ranks if key not in keys]:
            del self._ranks[key]


def _key(process: RankProcess) -> _Key:
    ledger = process.ledger
    return key_of(ledger), process.pid, ledger.pid_start_ticks


def _kept(process: RankProcess) -> _Rank:
    rank = rank_labels(process.ledger)
    roles = tuple((*rank, role) for role in _ROLES)
    modes = tuple(((*role, "user"), (*role, "system")) for role in roles)
    return _Rank("/".join(rank), rank, roles, modes)
