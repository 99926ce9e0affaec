"""What works beside this rank on its node: others' CPU time, writes on its disks, bytes on its links.

None of this is ever zero. So a work is what exceeds the usual: a low quantile of the last minutes.
"""

from __future__ import annotations

import os
import resource
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from ...ledger.layout import WORD_AT
from ...ledger.mounts import MOUNT_LABELS
from ...linux import netdev
from ...linux.unreadable import Unreadable
from ..proc import TICK_NS, open_file, read, read_bytes, read_table, reaped_ns
from .own import FORK_SERVER, Shares, children, process_cpu, program_of, tree_cpu

STAT = "/proc/stat"
_COLUMNS = 8
_LOOK_NS = 10_000_000_000
_LEAST_CPUS, _LEAST_PART = 0.25, 0.02
"""A neighbour takes at least this much of one CPU, and this part of all CPUs, more than usual."""
_STAT_BYTES, _TABLE_BYTES = 256, 1 << 16
_DISK_NAME, _READ, _WRITTEN = 2, 5, 9  # columns of /proc/diskstats (Documentation/admin-guide/iostats.rst)
_SECTOR = 512
_LEAST_WRITTEN = 500_000
"""Bytes a second. Fewer are the file system's own."""
_SAME_JOB = ("MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
_LEAST_EXTRA = 1_000_000
"""Bytes a second on a link that are not the job's. Fewer are not a transfer."""
_SERVES, _DOES_NOT = -1, 3
_IN_BUFFERS = 0.03
"""This part of what a link has moved may be on its way, and is not known to have arrived. It was 0.02 at most where two
ranks exchanged 4 MB a step."""


_FEW, _FEW_OF_A_LINK = 6, 4
"""With fewer values it is not known what is usual. What a link moves beside the rank's own bytes changes little by
itself."""
_OFTEN, _SELDOM = 0.25, 0.1
"""Quantiles. A link may be used in most looks: each may be longer than a transfer and the rest after it."""


class Usual:
    """A quantile of the last values."""

    def __init__(self, quantile: float, least: int, most: int = 256):
        self._quantile, self._least = quantile, least
        self._values: deque[float] = deque(maxlen=most)

    def add(self, value: float) -> float | None:
        """The quantile, with this value; None as long as there are too few."""
        self._values.append(value)
        if len(self._values) < self._least:
            return None
        ordered = sorted(self._values)
        return ordered[max(1, int(self._quantile * (len(ordered) - 1)))]  # the lowest one may be an error


class Neighbours:
    """The CPU time of the node that is not of this job."""

    def __init__(self, directory: str, own: Callable[[], list[int]]):
        """``directory``: where the ledgers are. Their names have the pids of ranks. ``own``: the pids of the processes
        that this one has started."""
        self._children = own
        self._stat = open_file(STAT)
        self._directory = directory
        self._ranks: list[int] = []
        self._same: dict[int, bool] = {}
        self._serves: dict[int, int] = {}
        """Processes of this job -> _SERVES, or how often it was not a fork server."""
        self._job = _job_of(os.getpid())
        self._look_ns = 0
        self._usual = Usual(_OFTEN, _FEW)
        self._busy = self._own = self._since = 0
        self._least = max(_LEAST_CPUS, _LEAST_PART * (os.cpu_count() or 1))
        self._most = 0.0

    def __del__(self) -> None:
        if self._stat >= 0:
            os.close(self._stat)

    def works(self, now_ns: int) -> Shares:
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + _LOOK_NS
            before, self._ranks = self._ranks, list(self._find())
            if self._ranks != before:
                self._since = 0  # the CPU time of a new rank would seem to have been spent at once
        busy, own = busy_ns(read(self._stat, _STAT_BYTES)), self._own_cpu()
        passed, busy_before, own_before = now_ns - self._since, self._busy, self._own
        known = bool(self._since and busy)
        self._busy, self._own, self._since = busy, own, now_ns if busy else 0
        if not known or passed <= 0 or own < own_before:  # a rank has ended, or its children that nobody has reaped
            return {}
        others = min(max(0.0, (busy - busy_before - (own - own_before)) / passed), float(os.cpu_count() or 1))
        usual = self._usual.add(others)
        if usual is None:
            return {}
        if others - usual < self._least:
            return {"neighbour": 0.0}
        self._most = max(self._most, others - usual)
        return {"neighbour": (others - usual) / self._most}

    def _find(self) -> Iterator[int]:
        """The other ranks of this job on this node."""
        for pid in ranks_in(self._directory) - {os.getpid()}:
            if pid not in self._same:
                self._same[pid] = _job_of(pid) == self._job != ()
            if self._same[pid]:
                yield pid

    def _own_cpu(self) -> int:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        total = time.process_time_ns() + int((ended.ru_utime + ended.ru_stime) * 1e9)
        before, self._serves = self._serves, {}
        for pid in (*self._children(), *(each for rank in self._ranks for each in (rank, *children(rank)))):
            try:
                total += process_cpu(pid)
            except OSError:  # it has ended
                continue
            looks = before.get(pid, 0)
            if 0 <= looks < _DOES_NOT:  # a process has another program, or none, until it executes its own one
                looks = _SERVES if program_of(pid) == FORK_SERVER else looks + 1
            self._serves[pid] = looks
            if looks == _SERVES:  # it starts the data workers, and waits for them
                total += reaped_ns(pid) + sum(tree_cpu(child, depth=0) or 0 for child in children(pid))
        return total + sum(map(reaped_ns, self._ranks))


def ranks_in(directory: str) -> set[int]:
    """The processes whose ledgers are in a directory, by the names of the files."""
    try:
        names = os.listdir(directory)
    except OSError:
        return set()
    return {int(pid) for name in names if (pid := name.partition("-")[2].partition("-")[0]).isdecimal()}


def _job_of(pid: int) -> tuple[str, ...]:
    """What the ranks of a job share in their environment; empty if it cannot be read."""
    words = read_bytes(f"/proc/{pid}/environ", 1 << 17).decode("utf-8", "replace").split("\0")
    return tuple(sorted(word for word in words if word.partition("=")[0] in _SAME_JOB))


def busy_ns(stat: bytes) -> int:
    """The time that all CPUs of a node were busy, from /proc/stat; 0 if that is not known."""
    words = stat.partition(b"\n")[0].split()
    if len(words) <= _COLUMNS or words[0] != b"cpu":
        return 0
    columns = [int(word) for word in words[1 : _COLUMNS + 1]]
    return (sum(columns) - columns[3] - columns[4]) * TICK_NS  # idle and iowait (proc_stat(5))


class Disks:
    """Writes on the disks at which somebody was blocked for the loop: by this rank behind its loop, or by others.

    The share is that of the writes in all bytes that such a disk moves.
    """

    def __init__(self, words: memoryview[int], string: Callable[[str], str]):
        self._string = string
        self._looks_at = WORD_AT["mount_looks_all"][0]
        self._words = words
        self._looks = -1
        self._names: dict[str, str] = {}
        self._usual: dict[str, Usual] = {}
        self._before: dict[str, tuple[int, int]] = {}
        self._since = 0

    def works(self, now_ns: int) -> Shares:
        if self._words[self._looks_at] != self._looks:
            self._looks = self._words[self._looks_at]
            self._names = dict(_disks_of(self._string(label) for label in MOUNT_LABELS))
        if not self._names:
            return {}
        found = moved_by_disks(read_table("/proc/diskstats", _TABLE_BYTES), self._names)
        seconds, before = (now_ns - self._since) / 1e9, self._before
        self._before, self._since = found, now_ns
        shares: Shares = {}
        for name, (read_now, written_now) in found.items():
            if name not in before:
                continue
            was_read, written = read_now - before[name][0], written_now - before[name][1]
            share = written / (was_read + written) if written > _LEAST_WRITTEN * seconds else 0.0
            usual = self._usual.setdefault(name, Usual(_OFTEN, _FEW)).add(share)
            if usual is not None:
                shares[f"disk {self._names[name]}"] = max(0.0, share - usual)
        return shares


def _disks_of(mounts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The block devices of mounts, given as in the ledger: name -> mount point."""
    for text in mounts:
        point, _, rest = text.partition(" ")
        source = rest.rpartition(" ")[2]
        if source.startswith("/dev/"):
            yield os.path.basename(os.path.realpath(source)), point


def moved_by_disks(diskstats: bytes, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """The bytes that these block devices have read and written."""
    wanted = {name.encode() for name in names}
    found: dict[str, tuple[int, int]] = {}
    for line in diskstats.splitlines():
        words = line.split()
        if len(words) > _WRITTEN and words[_DISK_NAME] in wanted:
            found[words[_DISK_NAME].decode()] = _SECTOR * int(words[_READ]), _SECTOR * int(words[_WRITTEN])
    return found


class Links:
    """Bytes on the links of the rank's transfers that these transfers do not explain.

    A link usually moves a little more than the rank's connections: headers, and the transfers of other ranks of the
    node.
    """

    def __init__(self, own: Callable[[], dict[str, int]]):
        """``own`` returns the bytes that the rank's connections have moved, by interface."""
        self._own = own
        self._usual: dict[str, Usual] = {}
        self._before: dict[str, tuple[int, int]] = {}
        self._since = 0

    def works(self, now_ns: int) -> Shares:
        own = self._own()
        if not own:
            return {}
        everybody = moved(read_table("/proc/self/net/dev", _TABLE_BYTES), own)
        found = {name: (everybody[name], own[name]) for name in everybody}
        seconds, before = (now_ns - self._since) / 1e9, self._before
        self._before, self._since = found, now_ns
        shares: Shares = {}
        for name, (all_now, own_now) in found.items():
            grown, mine = (all_now - before[name][0], own_now - before[name][1]) if name in before else (0, 0)
            if mine <= 0 or grown <= 0:  # nothing, or a connection was closed
                continue
            usual = self._usual.setdefault(name, Usual(_SELDOM, _FEW_OF_A_LINK)).add(grown / mine)
            if usual is not None:
                extra = grown - usual * mine
                seen = extra > max(_IN_BUFFERS * grown, _LEAST_EXTRA * seconds)
                shares[f"link {name}"] = extra / grown if seen else 0.0
        return shares


def moved(table: bytes, names: Iterable[str]) -> dict[str, int]:
    """The bytes that these interfaces have received and sent."""
    try:
        found = netdev.interfaces(table).interfaces
    except Unreadable:
        return {}
    return {
        name: int(found[name][netdev.RX_BYTES]) + int(found[name][netdev.TX_BYTES]) for name in names if name in found
    }
