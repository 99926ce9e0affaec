"""What a mount itself has moved: the counters of its block device, or of its NFS client. For the whole node.

For a server that is not mounted, it is what the interfaces of the rank's network namespace have moved.
"""

from __future__ import annotations

import os
import re
import time
from typing import NamedTuple

from ...ledger.mounts import STORE
from ...linux import netdev
from ...linux.mountinfo import Mount
from ...linux.mountstats import split
from ...linux.unreadable import Unreadable
from .. import proc

_SECTOR = 512
_NFS_SHARE = 200
"""The counters of NFS mounts are read for at most this part of the time."""
_STAT_BYTES = 512
_BYTES = re.compile(rb"^\tbytes:\s*(\d+(?: \d+){5,}) *$", re.MULTILINE)
_OPERATION = re.compile(rb"^\t *([A-Z_0-9]+): (\d+) (\d+) \d+ \d+ \d+ (\d+) (\d+)", re.MULTILINE)
_OPENS = (b"OPEN", b"OPEN_NOATTR")
"""The operations of NFS 4 that open a file. NFS 3 has none."""
_MS = 1_000_000
_MOST_MS = 1 << 53  # the queue times of some kernels are negative, as 64 bits


class Counted(NamedTuple):
    """Cumulative."""

    bytes: int
    operations: int
    queue_ns: int
    trip_ns: int
    resent: int
    opened: int = 0
    """Files, if the mount counts them."""


class Counter:
    """The counters of one mount. None of them can be read in some containers, and overlays have none."""

    __slots__ = ("_device", "_disk", "_due", "_inside", "_point", "exact")

    def __init__(self, mount: Mount):
        self._due = 0
        self.exact = mount.fstype != STORE
        """Otherwise it is an upper bound."""
        self._inside = mount.point.startswith(("127.", "[::1]"))
        self._point = mount.point if mount.fstype in ("nfs", "nfs4") else None
        self._device = mount.device if not mount.device.startswith("0:") and ":" in mount.device else None
        self._disk = proc.open_file(f"/sys/dev/block/{mount.device}/stat") if self._device else -1

    def __del__(self) -> None:
        if self._disk >= 0:
            os.close(self._disk)

    @property
    def cheap(self) -> bool:
        """Whether it is the counters of a block device, which each look may read."""
        return self._disk >= 0

    def due(self, now: int) -> bool:
        """Whether it may be read again: a node may have hundreds of NFS mounts, in one file."""
        return now >= self._due

    def read(self) -> Counted | None:
        if self._point is not None:
            begun = time.thread_time_ns()
            found = _nfs(self._point)
            self._due = time.monotonic_ns() + _NFS_SHARE * (time.thread_time_ns() - begun)
            return found
        if not self.exact:
            return interfaces(proc.read_table("/proc/self/net/dev", 1 << 16), inside=self._inside)
        if self._device is None:
            return None
        try:
            fields = proc.read(self._disk, _STAT_BYTES).split() if self._disk >= 0 else _in_diskstats(self._device)
        except OSError:  # the device is gone
            return None
        return disk(fields) if len(fields) >= 8 else None


def disk(fields: list[bytes]) -> Counted:
    """``fields``: of /sys/block/<disk>/stat (Documentation/block/stat.rst)."""
    reads, _, read_sectors, read_ms, writes, _, write_sectors, write_ms = map(int, fields[:8])
    return Counted(_SECTOR * (read_sectors + write_sectors), reads + writes, 0, (read_ms + write_ms) * _MS, 0)


def interfaces(table: bytes, *, inside: bool) -> Counted | None:
    """What the interfaces of /proc/net/dev have received and sent: the loopback one (``inside``), or all others."""
    try:
        found = netdev.interfaces(table).interfaces
    except Unreadable:
        return None
    columns = (netdev.RX_BYTES,) if inside else (netdev.RX_BYTES, netdev.TX_BYTES)  # loopback receives what it sends
    moved = sum(int(one[at]) for name, one in found.items() if (name == "lo") == inside for at in columns)
    return Counted(moved, 0, 0, 0, 0) if moved else None


def _in_diskstats(device: str) -> list[bytes]:
    """The same fields, in a container without sysfs."""
    major, _, minor = device.encode().partition(b":")
    for line in proc.read_table("/proc/diskstats", 1 << 16).splitlines():
        fields = line.split()
        if fields[:2] == [major, minor]:
            return fields[3:]
    return []


def _nfs(point: str) -> Counted | None:
    try:
        with open("/proc/self/mountstats", "rb", buffering=0) as file:
            blocks, _ = split(b"".join(iter(lambda: file.read(1 << 16), b"")))
    except (OSError, Unreadable):
        return None
    return next((counted(block.body) for block in reversed(blocks) if block.mount == point), None)


def counted(body: bytes) -> Counted | None:
    """``body``: the lines of one NFS mount. It is read with two patterns, because a look must not take long."""
    moved = _BYTES.search(body)
    if moved is None:
        return None
    numbers = [int(number) for number in moved[1].split()]
    operations = sent = queue = trip = opened = 0
    for name, requests, transmissions, queue_ms, trip_ms in _OPERATION.findall(body):
        if requests != b"0":
            operations += int(requests)
            opened += int(requests) if name in _OPENS else 0
            sent += int(transmissions)
            queue += int(queue_ms) if int(queue_ms) < _MOST_MS else 0
            trip += int(trip_ms)
    return Counted(sum(numbers[4:6]), operations, queue * _MS, trip * _MS, max(0, sent - operations), opened)
