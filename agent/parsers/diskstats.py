"""/proc/diskstats: one line per block device.

Format: https://docs.kernel.org/admin-guide/iostats.html. 11 fields after the name; 15 since Linux 4.18 (discards),
17 since 5.5 (flushes).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from ..files import Unreadable

_LINE = re.compile(r" *\d+ +\d+ ([\w!/.:-]{1,64})((?: \d{1,20}){11,})")
_NAME = re.compile(r"(.*?)(p?)\d+")


class Disk(NamedTuple):
    """One line. Its numbers are made only where they are wanted: most lines are loop devices and partitions."""

    name: str
    text: str

    @property
    def idle(self) -> bool:
        """Whether it never did anything."""
        return not self.text.strip(" 0")

    def fields(self) -> list[int]:
        """In the order of the kernel's documentation, whose field 1 is the first."""
        return list(map(int, self.text.split()))


def parse(data: bytes) -> tuple[dict[str, Disk], list[str]]:
    """All devices by name, and what the lines that are none speak of: a name, or nothing.

    Raises Unreadable if no line is good.
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
    """Whether it is a part of another device of ``names``.

    The kernel names partitions after their disk: sda1, and with a p where the disk ends in a digit: nvme0n1p1. A disk
    that only looks like one, as Xen's xvda1 without an xvda, is a disk.
    """
    match = _NAME.fullmatch(name)
    if not match or match[1] not in names:
        return False
    return match[1][-1:].isdigit() == bool(match[2])
