"""The collector `filesystem`: the file systems that ranks read from and write to, and their free space."""

from __future__ import annotations

import os
import time

from ...linux.mountinfo import Mount
from ..collector import Options
from ..fence import Fences
from ..files import reason_of
from ..ledgers import rank_labels
from ..metrics import filesystem as metrics
from ..processes.rank_files import RankFiles
from ..reading import Absent, Labels, Reading

FILE_SYSTEMS = 64
HUNG_SECONDS = 0.25
"""A statvfs that takes longer counts as hanging: if the server is gone, it never returns."""
PATIENCE_SECONDS = 1.0
"""Time for all file systems in one scrape. Those that are left after it are skipped in this scrape."""

_DENIED = (
    "space on the file systems of ranks",
    "only the owner of a process may see its root directory",
    "run the agent as root (or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH), or as the user of the training",
)


def create(options: Options) -> FilesystemCollector:
    return FilesystemCollector(options)


class _Space:
    """Reads the size and the free space of one file system."""

    def __init__(self, labels: Labels):
        self._labels = labels
        self._point = labels[0]
        self.process = ""  # /proc/<pid> of a process that sees the file system

    def collect(self, reading: Reading) -> None:
        try:
            found = os.statvfs(f"{self.process}/root{self._point}")
        except OSError as error:
            self._failed(reading, reason_of(error))
            return
        reading.add(metrics.SIZE, self._labels, found.f_blocks * found.f_frsize)
        reading.add(metrics.AVAILABLE, self._labels, found.f_bavail * found.f_frsize)
        reading.add(metrics.READONLY, self._labels, int(bool(found.f_flag & os.ST_RDONLY)))
        if found.f_files:  # btrfs has no limit on inodes
            reading.add(metrics.INODES_FREE, self._labels, found.f_ffree)

    def _failed(self, reading: Reading, reason: str) -> None:
        if reason == "denied":
            reading.blind(*_DENIED)
        elif os.path.exists(self.process):  # otherwise the process has just ended
            reading.error(self._point, "statvfs", reason)


class _Probe:
    """Reads one file system in its own thread. If the thread hangs, no other file system is affected, and no second
    thread is started.
    """

    def __init__(self, labels: Labels):
        self._space = _Space(labels)
        self._fences = Fences({labels[0]: self._space}, HUNG_SECONDS)
        self.hangs = False

    def ask(self, reading: Reading, process: str) -> None:
        if not self.hangs:
            self._space.process = process
        ((point, result),) = self._fences.round().items()
        self.hangs = result.state in ("deadline", "hanging")
        if result.reading:
            reading.samples.update(
                {metric: {**reading.series(metric), **samples} for metric, samples in result.reading.samples.items()}
            )
            reading.errors += result.reading.errors
            reading.blind_spots += result.reading.blind_spots
        elif self.hangs:
            reading.error(point, "statvfs", "hung")
        else:
            reading.error(point, "statvfs", result.state)

    def close(self) -> None:
        self._fences.close()


class FilesystemCollector:
    """Reads the file systems of ranks through each rank's root directory, because its mounts are visible only there."""

    def __init__(self, options: Options):
        self._processes = options.processes
        self._procfs = options.roots.procfs
        self._files = RankFiles(options.roots)
        self._probes: dict[Labels, _Probe] = {}

    def collect(self, reading: Reading) -> None:
        ranks = self._processes.look()
        seen: dict[Labels, int] = {}
        for process, files in self._files.sample(reading, ranks):
            rank = rank_labels(process.ledger)
            for use in files.uses:
                labels = _labels(use.mount, use.device)
                seen.setdefault(labels, process.pid)
                reading.add(metrics.INFO, (*rank, *labels, use.how), 1)
            for (mount, device), count in files.open.items():
                reading.add(metrics.OPEN_FILES, (*rank, *_labels(mount, device)), count)
        self._space(reading, seen)
        if not ranks:
            raise Absent("a live rank")

    def _space(self, reading: Reading, seen: dict[Labels, int]) -> None:
        # A probe that hangs is kept even if its ranks are gone, because a second one for the same mount would hang too.
        for labels in [labels for labels, probe in self._probes.items() if labels not in seen and not probe.hangs]:
            self._probes.pop(labels).close()
        until = time.monotonic() + PATIENCE_SECONDS
        for labels, pid in seen.items():
            probe = self._probes.get(labels)
            if probe is None:
                if len(self._probes) >= FILE_SYSTEMS:
                    reading.error("", "statvfs", "huge")
                    break
                probe = self._probes[labels] = _Probe(labels)
            if time.monotonic() < until:
                probe.ask(reading, f"{self._procfs}/{pid}")
            else:
                reading.error(labels[0], "statvfs", "skipped")


def _labels(mount: Mount, device: str) -> Labels:
    return (mount.point[:256], mount.fstype, mount.source[:256], device)
