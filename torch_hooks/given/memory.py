"""How much memory the rank's control groups and its node use, and may use. The watcher reads it in its rounds.

The limit that ends a job may be that of a group above its own, which others use, too. So all groups with a limit are
read, and the node. The ledger gets the one that is nearest to its limit.
Sources: https://docs.kernel.org/admin-guide/cgroup-v2.html, .../cgroup-v1/memory.html, proc_meminfo(5)
"""

from __future__ import annotations

import os
import re
import time

from ...ledger.given import MEMORY_OF, TRAIL
from ...ledger.layout import WORD_AT
from ...linux.cgroups import limit, oom_kills
from ...linux.unreadable import Unreadable, number
from .groups import folders, read

PERIOD_SECONDS = 1.0
_FAR_SECONDS = 4.0
"""The period while memory is far from its limit: less than _NEAR of it is used, and at the rate of the last period it
would take _SOON periods to reach it: rounds of the watcher are up to 8 s apart. A reading costs 0.4 to 0.6 ms."""
_NEAR, _SOON = 0.6, 12
_FIND_AGAIN_NS = 60_000_000_000
_USED_AT, _LIMIT_AT, _PEAK_AT, _READ_AT, _OF_AT = (
    WORD_AT[f"memory_{name}"][0] for name in ("used_bytes", "limit_bytes", "peak_bytes", "at_ns", "of")
)
_REFAULT_AT, _SHM_AT, _SHM_USED_AT, _WINDOW = (
    WORD_AT[name][0] for name in ("refault_bytes", "shm_bytes", "shm_used_bytes", "window_ns")
)
_START, _GROUP_ID_AT, _KILLS_AT, _KILLS_BEFORE_AT, _TRAIL_AT, _TRAIL_NS_AT = (
    WORD_AT[name][0]
    for name in (
        "start_ns",
        "memory_group_id",
        "oom_kills",
        "oom_kills_before",
        "memory_trail_bytes",
        "memory_trail_ns",
    )
)
_SHM = "/dev/shm"
_PAGE = os.sysconf("SC_PAGE_SIZE")
_NODE, _GROUP, _ABOVE = (MEMORY_OF.index(name) for name in ("node", "group", "above"))
_MEMINFO = re.compile(rb"^(MemTotal|MemAvailable): +(\d+) kB$", re.MULTILINE)
_CACHE = (b"active_file", b"inactive_file", b"slab_reclaimable")
"""What the kernel takes back when memory is short."""
_REFAULTS = b"workingset_refault_file"  # pages; without the ending before Linux 5.9
_STAT = re.compile(
    rb"^(hierarchical_memory_limit|slab_reclaimable|(?:total_)?(?:(?:in)?active_file|workingset_refault(?:_file)?))"
    rb" (\d{1,20})$",
    re.MULTILINE,
)
_SHORT = 0.9
"""The node counts beside groups that have limits if at least this share of its memory is used."""


class MemoryProbe:
    """Writes the words `memory_…` and `oom_kills…`."""

    def __init__(self, words: memoryview[int]):
        self._words = words
        self._groups: list[tuple[int, str]] = []  # index into MEMORY_OF, directory
        self._find_ns = 0
        self._peaks: dict[str, int] = {}
        self._refaults: dict[str, int] = {}  # of each group when the first step had begun
        self._own = ""
        self._trail: list[tuple[int, int]] = []
        self._trail_of = ""
        self._trail_every = round(1e9 * PERIOD_SECONDS)
        self._due_ns = 0
        # The group of the last reading, when that was, and the bytes that were used then.
        self._last: tuple[str | None, int, int] = (None, 0, 0)

    def look(self) -> None:
        now, words = time.monotonic_ns(), self._words
        if now < self._due_ns:
            self.count_kills()
            return
        if now >= self._find_ns:
            self._find_ns = now + _FIND_AGAIN_NS
            found = folders("memory")
            limited = [folder for folder in found if of_group(folder)]  # to read a group may cost 100 µs
            self._groups = [(_GROUP if folder == found[0] else _ABOVE, folder) for folder in limited]
            self._own = found[0] if found else ""
            words[_GROUP_ID_AT] = os.stat(self._own).st_ino if self._own else 0
        self.count_kills()
        places = [(_NODE, "", *of_node(read("/proc/meminfo")), 0)]
        places += [(of, folder, *used) for of, folder in self._groups if (used := of_group(folder))]
        for _, folder, used, _, refaults in places:
            self._peaks[folder] = max(used, self._peaks.get(folder, 0))
            if words[_WINDOW]:
                self._refaults.setdefault(folder, refaults)
        # If two are equally near to their limits, the rank's own group comes first.
        of, folder, used, most, refaults = max(places, key=lambda place: (_nearness(*place), -place[0]))
        words[_USED_AT], words[_LIMIT_AT], words[_PEAK_AT] = used, most, self._peaks[folder]
        words[_OF_AT], words[_READ_AT] = of, now
        words[_REFAULT_AT] = max(0, refaults - self._refaults.get(folder, refaults))
        words[_SHM_AT], words[_SHM_USED_AT] = shared_memory()
        self._note(folder, now - words[_START], used)
        far = self._is_far(folder, now, used, most)
        self._due_ns = now + round(1e9 * _FAR_SECONDS) if far else 0
        self._last = folder, now, used

    def _is_far(self, folder: str, now: int, used: int, most: int) -> bool:
        before, then, had = self._last
        if before != folder or used >= _NEAR * most:
            return False
        seconds = max((now - then) / 1e9, 1e-3)
        return used + (used - had) / seconds * _SOON * PERIOD_SECONDS < most

    def count_kills(self) -> None:
        """Notes how many processes of its control group the kernel has killed because memory ran out."""
        words, kills = self._words, oom_kills(self._own, read) if self._own else None
        words[_KILLS_AT] = 0 if kills is None else kills + 1
        words[_KILLS_BEFORE_AT] = words[_KILLS_BEFORE_AT] or words[_KILLS_AT]

    def _note(self, folder: str, at: int, used: int) -> None:
        """Notes how the memory grows. If there are TRAIL values, drops every second one."""
        if folder != self._trail_of:
            self._trail, self._trail_of = [], folder
        if self._trail and at - self._trail[-1][0] < self._trail_every:
            return
        if len(self._trail) == TRAIL:
            self._trail = self._trail[::2]
            self._trail_every *= 2
        self._trail.append((at, used))
        for index in range(TRAIL):
            at, used = self._trail[index] if index < len(self._trail) else (0, 0)
            self._words[_TRAIL_NS_AT + index], self._words[_TRAIL_AT + index] = at, used


def shared_memory() -> tuple[int, int]:
    """Bytes: (size of /dev/shm, used). 0 if there is none."""
    try:
        shm = os.statvfs(_SHM)
    except OSError:
        return 0, 0
    return shm.f_blocks * shm.f_frsize, (shm.f_blocks - shm.f_bfree) * shm.f_frsize


def _nearness(of: int, _folder: str, used: int, most: int, _refaults: int) -> float:
    share = used / most
    return share if of != _NODE or share >= _SHORT else -1.0


def of_node(meminfo: bytes) -> tuple[int, int]:
    """Bytes: (used, all). Raises Unreadable."""
    found = {name: 1024 * int(kilobytes) for name, kilobytes in _MEMINFO.findall(meminfo)}
    if len(found) < 2 or not found[b"MemTotal"]:
        raise Unreadable("garbage", "meminfo")
    return max(0, found[b"MemTotal"] - found[b"MemAvailable"]), found[b"MemTotal"]


def of_group(folder: str) -> tuple[int, int, int] | None:
    """Bytes: (working set, limit, file cache that was read again). None: it has no limit, or cannot be read."""
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
        refaults = stat.get(total + _REFAULTS, stat.get(total + b"workingset_refault", 0))
        return max(0, number(read(f"{folder}/{current}")) - cache), most, _PAGE * refaults
    except Unreadable:  # a root has no such files, and a group may be gone
        return None
