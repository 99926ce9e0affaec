"""How much memory the rank's control groups and its node use, and may use. The watcher reads it before a heartbeat.

The limit that ends a job may be that of a group above its own, which others use, too. So all groups with a limit are
read, and the node. The ledger gets the one that is nearest to its limit.
Sources: https://docs.kernel.org/admin-guide/cgroup-v2.html, .../cgroup-v1/memory.html, proc_meminfo(5)
"""

from __future__ import annotations

import re
import time

from ...ledger.given import MEMORY_OF
from ...ledger.layout import WORD_AT
from ...linux.cgroups import limit
from ...linux.unreadable import Unreadable, number
from .groups import folders, read

PERIOD_SECONDS = 1.0
_FIND_AGAIN_NS = 60_000_000_000
_USED_AT, _LIMIT_AT, _PEAK_AT, _READ_AT, _OF_AT = (
    WORD_AT[f"memory_{name}"][0] for name in ("used_bytes", "limit_bytes", "peak_bytes", "at_ns", "of")
)
_NODE, _GROUP, _ABOVE = (MEMORY_OF.index(name) for name in ("node", "group", "above"))
_MEMINFO = re.compile(rb"^(MemTotal|MemAvailable): +(\d+) kB$", re.MULTILINE)
_CACHE = (b"active_file", b"inactive_file", b"slab_reclaimable")
"""What the kernel takes back when memory is short."""
_STAT = re.compile(
    rb"^(hierarchical_memory_limit|(?:total_)?(?:in)?active_file|slab_reclaimable) (\d{1,20})$", re.MULTILINE
)
_SHORT = 0.9
"""The node counts beside groups that have limits if at least this share of its memory is used."""


class MemoryProbe:
    """Writes the words `memory_…`."""

    def __init__(self, words: memoryview[int]):
        self._words = words
        self._groups: list[tuple[int, str]] = []  # index into MEMORY_OF, directory
        self._find_ns = 0
        self._peaks: dict[str, int] = {}

    def look(self) -> None:
        now = time.monotonic_ns()
        if now >= self._find_ns:
            self._find_ns = now + _FIND_AGAIN_NS
            found = folders("memory")
            limited = [folder for folder in found if of_group(folder)]  # to read a group may cost 100 µs
            self._groups = [(_GROUP if folder == found[0] else _ABOVE, folder) for folder in limited]
        places = [(_NODE, "", *of_node(read("/proc/meminfo")))]
        places += [(of, folder, *used) for of, folder in self._groups if (used := of_group(folder))]
        for _, folder, used, _ in places:
            self._peaks[folder] = max(used, self._peaks.get(folder, 0))
        # If two are equally near to their limits, the rank's own group comes first.
        of, folder, used, most = max(places, key=lambda place: (_nearness(*place), -place[0]))
        words = self._words
        words[_USED_AT], words[_LIMIT_AT], words[_PEAK_AT] = used, most, self._peaks[folder]
        words[_OF_AT], words[_READ_AT] = of, now


def _nearness(of: int, _: str, used: int, most: int) -> float:
    share = used / most
    return share if of != _NODE or share >= _SHORT else -1.0


def of_node(meminfo: bytes) -> tuple[int, int]:
    """Bytes: (used, all). Raises Unreadable."""
    found = {name: 1024 * int(kilobytes) for name, kilobytes in _MEMINFO.findall(meminfo)}
    if len(found) < 2 or not found[b"MemTotal"]:
        raise Unreadable("garbage", "meminfo")
    return max(0, found[b"MemTotal"] - found[b"MemAvailable"]), found[b"MemTotal"]


def of_group(folder: str) -> tuple[int, int] | None:
    """Bytes: (working set, limit). None if the group has no limit, or cannot be read."""
    try:
        stat = {name: int(value) for name, value in _STAT.findall(read(f"{folder}/memory.stat"))}
        if b"hierarchical_memory_limit" in stat:  # version 1. It is also that of groups that a container does not see
            most, current, total = stat[b"hierarchical_memory_limit"], "memory.usage_in_bytes", b"total_"
        else:
            most, current, total = read(f"{folder}/memory.max"), "memory.current", b""
        most = limit(most if isinstance(most, bytes) else b"%d" % most)
        if not most:
            return None
        cache = sum(stat.get(total + name, 0) for name in _CACHE)
        return max(0, number(read(f"{folder}/{current}")) - cache), most
    except Unreadable:  # a root has no such files, and a group may be gone
        return None
