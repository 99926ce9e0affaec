"""Whether the kernel has killed a rank, or processes of its control group, because memory ran out.

The kernel's log names them, where it may be read. Otherwise the count of the group tells, if the group still exists. A
container's group is removed with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from ...ledger.deaths import NAME_LENGTH, OTHERS, OomKill
from ...ledger.reader import Ledger
from ...linux.cgroups import oom_kills
from ...linux.kernel_log import OomVictim, oom_victims, records
from ...linux.unreadable import Unreadable
from ..files import Roots, read
from .cgroup_tree import walk

COUNT_SECONDS = 120.0
"""A count that has grown confirms a death only if it is read this soon after the last sign of life: later, it may be
about other processes in the same group."""
_CLOCKS_NS = 10_000_000_000
"""The clock of the log is not adjusted, so it may differ by seconds."""
_FIRST_NAMESPACE = 0xEFFFFFFC
"""The inode of the node's pid namespace (PROC_PID_INIT_INO)."""


def oom_kills_of(
    ledgers: Sequence[Ledger], roots: Roots | None = None, pids: Mapping[str, int] | None = None
) -> dict[str, OomKill]:
    """Path of a ledger -> what the kernel says. Only of ledgers about which it says something. Never raises.

    ``pids``: the pids of the ranks in the node's pid namespace, by the path of the ledger, as far as known.
    """
    look = _Look(roots or Roots(), pids or {})
    found = ((ledger.path, look.at(ledger)) for ledger in ledgers)
    return {path: oom for path, oom in found if oom is not None}


class _Look:
    """What was read is used for all ranks."""

    def __init__(self, roots: Roots, pids: Mapping[str, int]):
        self._roots, self._pids = roots, pids

    def at(self, ledger: Ledger) -> OomKill | None:
        pid, folder = self._pid(ledger), self._folders.get(ledger.memory_group_id, "")
        during = [one for one in self._victims if one.at_ns >= ledger.start_ns - _CLOCKS_NS]
        own = next((one for one in reversed(during) if one.pid == pid), None) if not ledger.alive else None
        group = own.group if own else folder
        others = [one for one in during if one is not own and one.group and one.group == group]
        others = others[max(0, len(others) - self._grown(ledger, folder)) :]  # earlier ones were not in its life
        if own or others:
            last = own or others[-1]
            named = tuple(f"{one.name[:16]} (pid {one.pid})"[:NAME_LENGTH] for one in others[-OTHERS:])
            return OomKill("log", own is not None, last.limit, not last.limit, tuple(filter(str.isprintable, named)))
        if ledger.alive or ledger.ended:
            return OomKill("count", False) if self._grown(ledger, folder) else None
        late = time.monotonic_ns() - ledger.last_sign_ns > COUNT_SECONDS * 1e9
        return OomKill("count", False) if self._count(ledger, folder) > ledger.oom_kills and not late else None

    def _pid(self, ledger: Ledger) -> int:
        """In the node's namespace; 0: not known."""
        if self._in_first_namespace:
            return self._pids.get(ledger.path) or ledger.pid
        return self._pids.get(ledger.path, 0) if self._roots.procfs != "/proc" else 0

    def _grown(self, ledger: Ledger, folder: str) -> int:
        """How many processes of its group the kernel has killed during its life, as far as known."""
        return max(0, self._count(ledger, folder) - ledger.oom_kills_before) if ledger.oom_kills else 0

    def _count(self, ledger: Ledger, folder: str) -> int:
        """As the ledger counts: + 1, and 0 if it is not known."""
        if ledger.alive or ledger.ended or not ledger.oom_kills or not folder:
            return ledger.oom_kills
        now = oom_kills(f"{self._top}{folder}", read)
        return ledger.oom_kills if now is None else now + 1

    @cached_property
    def _victims(self) -> list[OomVictim]:
        try:
            return oom_victims(records(f"{self._roots.rootfs.rstrip('/')}/dev/kmsg"))
        except Unreadable:
            return []

    @cached_property
    def _top(self) -> str:
        """The root of the hierarchy that limits memory."""
        top = f"{self._roots.sysfs}/fs/cgroup"
        return f"{top}/memory" if os.path.isdir(f"{top}/memory") else top

    @cached_property
    def _folders(self) -> dict[int, str]:
        """Inode of a control group -> its path, as the kernel's log names it."""
        found: dict[int, str] = {}
        for folder in walk(self._top):
            try:
                found[os.stat(folder).st_ino] = folder[len(self._top) :] or "/"
            except OSError:  # it is gone
                continue
        return found

    @cached_property
    def _in_first_namespace(self) -> bool:
        try:
            return os.stat("/proc/self/ns/pid").st_ino == _FIRST_NAMESPACE
        except OSError:
            return False


def add_ooms(ledgers: Iterable[Ledger]) -> None:
    """Asks the kernel about ranks of which no agent has noted what it says."""
    unknown = [ledger for ledger in ledgers if ledger.oom is None and (ledger.oom_kills or not ledger.alive)]
    found = oom_kills_of(unknown)
    for ledger in unknown:
        ledger.oom = found.get(ledger.path)
