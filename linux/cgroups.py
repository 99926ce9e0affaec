"""/proc/<pid>/cgroup and the files of control groups.

Formats: cgroups(7); https://docs.kernel.org/admin-guide/cgroup-v2.html and .../cgroup-v1/
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .unreadable import Unreadable, number

_LINE = re.compile(rb"(\d+):([^:]*):(/.*)")
_KEYED = re.compile(rb"([a-z_.]+) (\d{1,20})")
_CPU_MAX = re.compile(rb"(max|\d{1,20}) ([1-9]\d{0,19})\s*")

UNIFIED = ""
"""The key for the single hierarchy of cgroup v2, where v1 has the name of a controller."""
_UNLIMITED = 1 << 62
"""Larger values mean "no limit": cgroup v1 writes that as the largest number of pages, in bytes, just below 2**63."""


def paths(data: bytes) -> dict[str, str]:
    """Controller -> path of the process's control group, relative to the reader's namespace. Raises Unreadable."""
    found: dict[str, str] = {}
    for line in data.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise Unreadable("garbage")
        try:
            controllers, path = match[2].decode(), match[3].decode()
        except UnicodeDecodeError:
            raise Unreadable("garbage") from None
        for controller in controllers.split(","):
            found[controller] = path
    if not found:
        raise Unreadable("empty")
    return found


def keyed(data: bytes) -> dict[str, int]:
    """The values of a file with a name and a number per line, such as cpu.stat. Raises Unreadable."""
    found: dict[str, int] = {}
    for line in data.splitlines():
        match = _KEYED.fullmatch(line)
        if match is None:
            raise Unreadable("garbage")
        found[match[1].decode()] = int(match[2])
    if not found:
        raise Unreadable("empty")
    return found


def limit(data: bytes) -> int | None:
    """A limit, or None if there is no limit. Raises Unreadable."""
    if data.strip() == b"max":
        return None
    value = number(data)
    return value if value < _UNLIMITED else None


def cpu_max(data: bytes) -> float | None:
    """The number of CPUs that a group may use, from cpu.max of cgroup v2. None if unlimited. Raises Unreadable."""
    match = _CPU_MAX.fullmatch(data)
    if match is None:
        raise Unreadable("garbage" if data.strip() else "empty")
    return None if match[1] == b"max" else int(match[1]) / int(match[2])


def cfs_quota(data: bytes) -> int | None:
    """The value of cpu.cfs_quota_us of cgroup v1, in µs. None for -1, which means unlimited. Raises Unreadable."""
    return None if data.strip() == b"-1" else number(data)


def oom_kills(folder: str, read: Callable[[str], bytes]) -> int | None:
    """How many processes of a group the kernel has killed because memory ran out, its own or the node's.

    None if it cannot be read. Version 1 counts those of the group itself, version 2 also those below it.
    """
    for name in ("memory.events", "memory.oom_control"):
        try:
            return keyed(read(f"{folder}/{name}")).get("oom_kill")
        except Unreadable:  # the file of the other version, or the group is gone
            continue
    return None
