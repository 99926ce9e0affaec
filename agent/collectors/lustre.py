"""The collector `lustre`: the counters of Lustre's client, per file system."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from ...linux.mountstats import SuperBlock, super_blocks
from ..collector import Options
from ..files import KeptFiles, Unreadable
from ..kernel.routes import Routes
from ..metrics.lustre import BYTES, CALLS, CONNECTIONS, INFO, SECONDS
from ..parsers import llite
from ..reading import Absent, Reading

MOST_FILE_SYSTEMS = 16
MOST_CONNECTIONS = 512
OPERATIONS = (
    *("read", "write", "open", "close", "mmap", "page_fault", "seek", "fsync"),
    *("readdir", "getattr", "statfs", "inode_permission"),
)
NO_OPERATIONS = ("dirty_pages_hits", "dirty_pages_misses")
"""Counters before Lustre 2.12 that count pages, not operations."""
STATES = (
    *("full", "idle", "new", "connecting", "disconn", "evicted", "closed"),
    *("replay", "replay_locks", "replay_wait", "recover"),
)
_HIDDEN = "hidden"
_CLIENT = re.compile(r".+-[0-9a-f]{8,16}")
_SERVER = re.compile(r"([^@]+)@(o2ib|[a-z]+)")


def create(options: Options) -> LustreCollector:
    return LustreCollector(options.roots.procfs, options.roots.sysfs)


class LustreCollector:
    """Reads the counters from three roots: Lustre 2.12 moved them from procfs to debugfs, and some to sysfs."""

    def __init__(self, procfs: str, sysfs: str):
        self._procfs = procfs
        self._roots = (f"{procfs}/fs/lustre", f"{sysfs}/kernel/debug/lustre", f"{sysfs}/fs/lustre")
        self._files = KeptFiles()
        self._routes = Routes(procfs)

    def collect(self, reading: Reading) -> None:
        folders = {name: roots for name, roots in self._folders("llite").items() if _CLIENT.fullmatch(name)}
        if not folders:
            raise Absent("Lustre mounts under /proc/fs/lustre, /sys/fs/lustre and /sys/kernel/debug/lustre")
        if len(folders) > MOST_FILE_SYSTEMS:
            reading.blind(
                "some of the Lustre mounts",
                f"only the first {MOST_FILE_SYSTEMS} are read",
                "unmount file systems that are not used",
            )
        chosen = sorted(folders)[:MOST_FILE_SYSTEMS]
        self._info(chosen, reading)
        for name in chosen:
            self._stats(name, folders[name], reading)
        self._connections(set(chosen), reading)

    def _folders(self, kind: str) -> dict[str, list[str]]:
        """Name -> the roots that have it. In debugfs, only root can see the names."""
        found: dict[str, list[str]] = {}
        for root in self._roots:
            try:
                names = self._files.names(f"{root}/{kind}")
            except Unreadable:
                continue
            for name in names:
                found.setdefault(name, []).append(root)
        return found

    def _first(self, roots: list[str], kind: str, name: str, file: str) -> bytes:
        """The file from the first root that has it. Raises Unreadable, with `hidden` if only sysfs is visible."""
        reason = _HIDDEN if roots == [self._roots[-1]] else "missing"
        for root in roots:
            try:
                return self._files.text(f"{root}/{kind}/{name}/{file}")
            except Unreadable as error:
                if error.reason == "denied":
                    reason = _HIDDEN
                elif error.reason != "missing":
                    raise
        raise Unreadable(reason)

    def _info(self, names: list[str], reading: Reading) -> None:
        places = self._places(reading)
        of_name = Counter(_file_system(name) for name in names)
        for name in names:
            file_system = _file_system(name)
            found = places.get(file_system, {})
            # If a file system has two clients, it is not known which of them is mounted where.
            sure = len(found) == 1 and of_name[file_system] == 1
            mount = next(iter(found.values())).mount if sure else ""
            # Clients of one file system have the same servers.
            address, protocol = _server(next(iter(found.values())).source) if found else ("", "")
            labels = (name, file_system, mount, protocol, self._routes.interface_to(address, reading))
            reading.add(INFO, labels, 1)

    def _places(self, reading: Reading) -> dict[str, dict[str, SuperBlock]]:
        """File system -> device number -> its first mount."""
        for whose in ("1", "self"):
            try:
                rows = super_blocks(self._files.text(f"{self._procfs}/{whose}/mountinfo"), "lustre")
            except Unreadable as error:
                reading.error("", f"{whose}/mountinfo", error.reason)
                continue
            places: dict[str, dict[str, SuperBlock]] = defaultdict(dict)
            for row in rows:  # source: 10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch[/directory]
                file_system = row.source.rpartition(":/")[2].split("/")[0]
                places[file_system].setdefault(row.device, row)
            return places
        return {}

    def _stats(self, name: str, roots: list[str], reading: Reading) -> None:
        try:
            stats = llite.parse(self._first(roots, "llite", name, "stats"))
        except Unreadable as error:
            self._error(name, "llite stats", error, reading)
            return
        if stats.bad:
            reading.error(name, "llite stats", "garbage")
        for key, pair in stats.bytes.items():
            for metric, value in zip(BYTES.get(key, ()), pair, strict=False):
                reading.add(metric, (name,), value)
        _operations(name, stats, reading)

    def _connections(self, chosen: set[str], reading: Reading) -> None:
        """Adds the connections by state. If one cannot be read, the numbers of its file system are absent."""
        states: dict[str, Counter[str]] = defaultdict(Counter)
        spoilt: set[str] = set()
        for file_system, kind, name, roots in self._of(chosen, reading):
            try:
                state = llite.state(self._first(roots, kind, name, "import")).lower()
            except Unreadable as error:
                spoilt.add(file_system)
                self._error(name, "import", error, reading)
            else:
                states[file_system][state if state in STATES else "unknown"] += 1
        for file_system in states.keys() - spoilt:
            for state, count in states[file_system].items():
                reading.add(CONNECTIONS, (file_system, state), count)

    def _of(self, chosen: set[str], reading: Reading) -> list[tuple[str, str, str, list[str]]]:
        """The connections of the chosen file systems: (file system, kind, name, roots). Empty if there are too many."""
        found = [
            (file_system, kind, name, roots)
            for kind in ("mdc", "osc")
            for name, roots in self._folders(kind).items()
            if (file_system := llite.file_system_of(name)) in chosen and file_system
        ]
        if len(found) <= MOST_CONNECTIONS:
            return found
        reading.blind(
            "connections to Lustre's targets",
            f"there are more than {MOST_CONNECTIONS}, and each has a file to read",
            "run lctl get_param osc.*.import",
        )
        return []

    def _error(self, name: str, file: str, error: Unreadable, reading: Reading) -> None:
        if error.reason != _HIDDEN:
            reading.error(name, file, error.reason)
            return
        reading.blind(
            "Lustre's counters",
            "since Lustre 2.12 they are in debugfs, which only root can read",
            "run the agent as root with /sys/kernel/debug mounted",
        )


def _operations(name: str, stats: llite.Stats, reading: Reading) -> None:
    calls: Counter[str] = Counter()
    microseconds: Counter[str] = Counter()
    for key, (count, spent) in stats.operations.items():
        if key in NO_OPERATIONS:
            continue
        operation = key if key in OPERATIONS else "other"
        calls[operation] += count
        if spent is not None:
            microseconds[operation] += spent
    for operation, count in calls.items():
        reading.add(CALLS, (name, operation), count)
    for operation, spent in microseconds.items():
        reading.add(SECONDS, (name, operation), spent / SECONDS.per)


def _file_system(name: str) -> str:
    """The file system of a client: scratch-ffff9bc043537800 -> scratch."""
    return name.rpartition("-")[0] or name


def _server(source: str) -> tuple[str, str]:
    """The address and the type of the network of the first server: 10.0.0.1@o2ib1:10.0.0.2@o2ib1:/scratch."""
    found = _SERVER.match(source)
    return (found[1], found[2]) if found else ("", "")
