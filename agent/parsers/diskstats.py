"""/proc/diskstats: one line per block device.

Format: https://docs.kernel.org/admin-guide/iostats.html. There are 11 fields after the name, 15 since Linux 4.18
(discards), 17 since 5.5 (flushes).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from ..files import Unreadable

_LINE = re.compile(r" *\d+ +\d+ ([\w!/.:-]{1,64})((?: \d{1,20}){11,})")
_NAME = re.compile(r"(.*?)(p?)\d+")


class Disk(NamedTuple):
    """One line. Its numbers are parsed only on request, because most lines are loop devices and partitions."""

    name: str
    text: str

    @property
    def idle(self) -> bool:
        """Whether the device has never done any I/O."""
        return not self.text.strip(" 0")

    def fields(self) -> list[int]:
        """The fields in the order of the kernel's documentation. Its field 1 has index 0."""
        return list(map(int, self.text.split()))


def parse(data: bytes) -> tuple[dict[str, Disk], list[str]]:
    """The devices by name, and the device names of lines that cannot be parsed ("" if there is no name).

    Raises Unreadable if no line can be parsed.
    """
    found: dict[str, Disk] = {}
    bad: list[str] = []
    for line in data.decode("ascii", "replace").splitlines():
        if match := _LINE.fullmatch(line):
            found[match[1]] = Disk(match[1], match[2])
        elif line.strip():
            bad.append(_speaks_of(line))
    if not found:
        raise Unreadable("garbage" if bad else "empty")
    return found, bad


def _speaks_of(line: str) -> str:
    match = re.match(r" *\d+ +\d+ ([\w!/.:-]{1,64}) ", line)
    return match[1] if match else ""


def is_partition(name: str, names: Collection[str]) -> bool:
    """Whether a device is a partition of another device in ``names``.

    The kernel names partitions after their disk, such as sda1. If the name of the disk ends in a digit, there is a p
    between: nvme0n1p1. Without such a disk, the device is a disk itself, for example Xen's xvda1 without an xvda.
    """
    match = _NAME.fullmatch(name)
    if not match or match[1] not in names:
        return False
    return match[1][-1:].isdigit() == bool(match[2])
