"""The rate that control groups allow this process on a block device (cgroup-v2.rst, blkio-controller.rst)."""

from __future__ import annotations

import os

from ...ledger.mounts import LIMITS
from .. import proc

_ROOT = "/sys/fs/cgroup"
_V2, _V1 = LIMITS.index("io.max"), LIMITS.index("blkio.throttle")


def limit_of(device: str, *, writes: bool, root: str = _ROOT, groups: str = "/proc/self/cgroup") -> tuple[int, int]:
    """(bytes a second, index into LIMITS) of the least limit; (0, 0) if none is known. ``device``: major:minor."""
    device = _whole(device)
    found: list[tuple[int, int]] = []
    for line in proc.read_file(groups, 4096).splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            found += [(rate, _V2) for folder in _upwards(group) if (rate := _io_max(root + folder, device, writes))]
        elif "blkio" in controllers.split(","):
            name = f"{root}/blkio{group}/blkio.throttle.{'write' if writes else 'read'}_bps_device"
            found += [(rate, _V1) for rate in [throttle(proc.read_file(name, 4096), device)] if rate]
    return min(found, default=(0, 0))


def _whole(device: str) -> str:
    """The disk of a partition: it is what limits are set for."""
    folder = f"/sys/dev/block/{device}"
    return proc.read_file(f"{folder}/../dev", 32).strip() or device if os.path.exists(f"{folder}/partition") else device


def _upwards(group: str) -> list[str]:
    parts = group.strip("/").split("/")
    return [f"/{'/'.join(parts[:count])}" for count in range(len(parts), -1, -1)]


def _io_max(folder: str, device: str, writes: bool) -> int:
    return io_max(proc.read_file(f"{folder}/io.max", 4096), device, writes)


def io_max(text: str, device: str, writes: bool) -> int:
    for line in text.splitlines():
        name, *values = line.split()
        if name == device:
            limit = dict(value.split("=", 1) for value in values).get("wbps" if writes else "rbps", "max")
            return int(limit) if limit.isdigit() else 0
    return 0


def throttle(text: str, device: str) -> int:
    return next((int(words[1]) for line in text.splitlines() if (words := line.split())[:1] == [device]), 0)
