"""Finds the file systems that ranks and their workers read from and write to, by sampling their open files.

A training process has hundreds of open files, almost all of them sockets, pipes and devices, and looking at one takes
2 µs. So each scrape looks at a few processes only, in turn, beginning with ranks that are saving a checkpoint. Results
are remembered for a while, because a checkpoint is open for a moment only, and a data file may be closed once it is
mapped.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ...ledger.directory import Key, key_of
from ...linux import mountinfo
from ...linux.mountinfo import Mount
from ..files import Roots, Unreadable, read, reason_of
from ..ledgers import rank_name
from ..reading import Reading
from .rank_processes import RankProcess

LINKS = 48
"""How many open files are looked at in one scrape. The last process is finished even if this is exceeded."""
LINKS_PER_PROCESS = 512
PROCESS_LINKS = 16
"""The fixed cost of looking at a process, as a number of links."""
FILES_PER_PROCESS = 64
USES_PER_RANK = 16
REMEMBERED_SECONDS = 600.0
REMEMBERED_LOOKS = 4
MAPS_SECONDS = 600.0
"""How often the mapped files of a rank are read: `maps` of a training process has about a thousand lines."""
TABLE_SECONDS = 30.0
_TABLES = 64
_DENIED_SECONDS = 60.0
_GONE = ("missing", "gone")

# fmt: off
_PSEUDO = frozenset(
    {
        "anon_inodefs", "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts",
        "devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "pipefs", "proc", "pstore", "ramfs",
        "rpc_pipefs", "securityfs", "selinuxfs", "sockfs", "sysfs", "tracefs",
    }
)
# fmt: on
_NO_DATA = ("/dev/", "/proc/", "/sys/", "/memfd:", "/[")
_SYSTEM = ("/usr/", "/lib/", "/lib64/", "/etc/", "/opt/conda/lib/", "/var/cache/")
_PACKAGES = ("/site-packages/", "/dist-packages/")
_CHECKPOINT = "checkpoint"

_DENIED = (
    "the file systems of ranks",
    "only the owner of a process may see its open files",
    "run the agent as root (or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH), or as the user of the training",
)

How = Literal["read", "write"]


class Use(NamedTuple):
    mount: Mount
    device: str  # the disk of the file system, or its device number
    how: How


class Files(NamedTuple):
    """What is known about one rank's files."""

    uses: list[Use]
    open: dict[tuple[Mount, str], int]
    """Number of open files by mount and device, for the network file systems that the rank uses."""


@dataclass(slots=True)
class _Rank:
    looks: int = 0
    looked: float = 0.0
    maps_due: float = 0.0
    denied_until: float = 0.0
    uses: dict[Use, tuple[float, int]] = field(default_factory=dict)  # time and number of the look that last saw it
    open: dict[int, Counter[tuple[Mount, str]]] = field(default_factory=dict)  # by pid, from the latest look at it


@dataclass(slots=True)
class _Table:
    mounts: dict[int, Mount]
    read_at: float


class RankFiles:
    """Samples the files of ranks and remembers the results. Not thread-safe."""

    def __init__(self, roots: Roots):
        self._procfs = roots.procfs
        self._sysfs = roots.sysfs
        self._ranks: dict[tuple[Key, int], _Rank] = {}
        self._tables: dict[str, _Table] = {}
        self._disks: dict[tuple[str, str], str] = {}
        self._bad_lines = 0

    def sample(self, reading: Reading, processes: list[RankProcess]) -> list[tuple[RankProcess, Files]]:
        """Looks at some of the processes. Returns what is known about each rank's files."""
        now = time.monotonic()
        self._ranks = {key: self._ranks.get(key) or _Rank() for key in map(_key, processes)}
        left = LINKS
        for process in sorted(processes, key=self._turn):
            if left <= 0:
                break
            left -= self._look_through(reading, process, self._ranks[_key(process)], now)
        return [(process, _files(process, self._ranks[_key(process)], now)) for process in processes]

    def _turn(self, process: RankProcess) -> tuple[bool, float]:
        """The sort key: ranks in a checkpoint first, then those that were looked at longest ago."""
        return _CHECKPOINT not in process.ledger.phase_name, self._ranks[_key(process)].looked

    def _look_through(self, reading: Reading, process: RankProcess, rank: _Rank, now: float) -> int:
        """Looks at one process of a rank. Returns the cost, as a number of links."""
        if now < rank.denied_until:
            return 0
        pid, name = process.pid, rank_name(process.ledger)
        if rank.looks % 2 and process.workers and _CHECKPOINT not in process.ledger.phase_name:
            pid = process.workers[rank.looks // 2 % len(process.workers)]
        rank.looks += 1
        rank.looked = now
        cost = PROCESS_LINKS
        try:
            cost += self._open_files(process, pid, rank, now)
            if now >= rank.maps_due:
                rank.maps_due = now + MAPS_SECONDS
                self._mapped_files(pid, rank, now)
                cost += LINKS
        except Unreadable as error:
            if error.reason == "denied":
                rank.denied_until = now + _DENIED_SECONDS
                reading.blind(*_DENIED)
            elif error.reason not in _GONE:
                reading.error(name, "open files", error.reason)
        if self._bad_lines:
            reading.error(name, "mountinfo", "garbage")
            self._bad_lines = 0
        return cost

    def _open_files(self, process: RankProcess, pid: int, rank: _Rank, now: float) -> int:
        own = os.path.basename(process.ledger.path)
        folder = f"{self._procfs}/{pid}/fd"
        try:
            descriptors = os.listdir(folder)[:LINKS_PER_PROCESS]
        except OSError as error:
            raise Unreadable(reason_of(error), folder) from error
        files = 0
        counts = rank.open[pid] = Counter[tuple[Mount, str]]()
        for descriptor in descriptors:
            try:
                path = os.readlink(f"{folder}/{descriptor}")
            except OSError:
                continue  # it has been closed
            if path[:1] != "/" or path.startswith(_NO_DATA) or os.path.basename(path) == own:
                continue
            files += 1
            if files > FILES_PER_PROCESS:
                break
            try:
                file = mountinfo.open_file(read(f"{self._procfs}/{pid}/fdinfo/{descriptor}"))
            except Unreadable as error:
                if error.reason in _GONE:
                    continue
                raise
            if file:
                hows: list[How] = [*(["read"] if file.reads else []), *(["write"] if file.writes else [])]
                mount = self._table(pid, now, file.mount).get(file.mount)
                self._note(rank, mount, hows, now)
                if mount and mountinfo.is_network(mount.fstype):
                    counts[mount, self._disk(mount)] += 1
        return len(descriptors)

    def _mapped_files(self, pid: int, rank: _Rank, now: float) -> None:
        """Records the mapped files of a process: data sets are often closed after they have been mapped."""
        for path, writes in mountinfo.mapped_files(read(f"{self._procfs}/{pid}/maps")).items():
            if path.startswith(_NO_DATA) or path.startswith(_SYSTEM) or any(part in path for part in _PACKAGES):
                continue
            mount = mountinfo.mount_of(path, self._table(pid, now))
            self._note(rank, mount, ["write" if writes else "read"], now)

    def _note(self, rank: _Rank, mount: Mount | None, hows: Iterable[How], now: float) -> None:
        if mount is None or mount.fstype in _PSEUDO or f"{mount.point}/".startswith(_NO_DATA):
            return
        for how in hows:
            use = Use(mount, self._disk(mount), how)
            if use in rank.uses or len(rank.uses) < USES_PER_RANK:
                rank.uses[use] = (now, rank.looks)

    def _table(self, pid: int, now: float, wanted: int | None = None) -> dict[int, Mount]:
        """The mounts of a process's mount namespace, by id. Read again if ``wanted`` is not among them."""
        try:
            namespace = os.readlink(f"{self._procfs}/{pid}/ns/mnt")
        except OSError:
            namespace = f"of {pid}"
        table = self._tables.get(namespace)
        if table is None or (now - table.read_at > TABLE_SECONDS and wanted not in table.mounts):
            if len(self._tables) >= _TABLES:
                self._tables.clear()
                self._disks.clear()
            mounts, self._bad_lines = mountinfo.mounts(read(f"{self._procfs}/{pid}/mountinfo"))
            table = self._tables[namespace] = _Table(mounts, now)
        return table.mounts

    def _disk(self, mount: Mount) -> str:
        key = (mount.device, mount.source)
        if key not in self._disks:
            self._disks[key] = self._find_disk(mount) or mount.device
        return self._disks[key]

    def _find_disk(self, mount: Mount) -> str | None:
        """The whole disk of a mount, or None. btrfs has its own device numbers, but its source is one of its disks."""
        for path in (f"dev/block/{mount.device}", f"class/block/{os.path.basename(mount.source)}"):
            directory = os.path.realpath(f"{self._sysfs}/{path}")
            if mount.source.startswith("/dev/") and os.path.isdir(directory):
                partition = os.path.exists(f"{directory}/partition")
                return os.path.basename(os.path.dirname(directory) if partition else directory)
        return None


def _files(process: RankProcess, rank: _Rank, now: float) -> Files:
    """What is known about a rank's files. Forgets uses that were not seen for a long time, and ended processes."""
    for use, (when, look) in list(rank.uses.items()):
        if now - when > REMEMBERED_SECONDS and rank.looks - look >= REMEMBERED_LOOKS:
            del rank.uses[use]
    for pid in rank.open.keys() - {process.pid, *process.workers}:
        del rank.open[pid]
    network = {(use.mount, use.device) for use in rank.uses if mountinfo.is_network(use.mount.fstype)}
    return Files(list(rank.uses), {key: sum(counts[key] for counts in rank.open.values()) for key in network})


def _key(process: RankProcess) -> tuple[Key, int]:
    return key_of(process.ledger), process.pid
