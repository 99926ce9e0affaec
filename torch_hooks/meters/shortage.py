"""Measures how much CPU time this rank did not get: others of the node used the CPU, or a hypervisor took it away.

A thread does not notice a hypervisor that gives its CPU to another machine: its work seems to take longer. The kernel
counts this time, the steal, per CPU and not per thread (proc_stat(5)). So the ledger gets it for all CPUs that the rank
may use, beside the time that was asked for on them. How long the training thread queued behind others is known exactly.
"""

from __future__ import annotations

import os
import time

from ..proc import TICK_NS
from ..tasks import TaskClock

STAT = "/proc/stat"
_PAUSE_NS = 2_000_000_000
_SHARE = 1000
"""Readings take at most this part of the time. On a node with hundreds of CPUs, one takes milliseconds."""
_STEAL = 8
"""The columns of a CPU: its name, user, nice, system, idle, iowait, irq, softirq, steal."""


class ShortageMeter:
    """The shortage of CPU time since the construction. The training thread must create it and call it."""

    __slots__ = ("_cpus", "_first", "_queue", "_task", "due_ns")

    def __init__(self, task: TaskClock):
        self._task = task
        self._cpus = frozenset(b"cpu%d" % cpu for cpu in os.sched_getaffinity(0))
        self._queue = task.queue()
        self._first = _read(self._cpus)
        self.due_ns = 0
        """When the next reading is due, ns of CLOCK_MONOTONIC."""

    def read(self) -> tuple[int, int, int]:
        """ns: (asked for on the CPUs, stolen from them, the training thread queued). Both of a CPU are 0 if unknown."""
        begun = time.monotonic_ns()
        asked, stolen = _read(self._cpus)
        queued = self._task.queue() - self._queue
        ended = time.monotonic_ns()
        self.due_ns = ended + max(_PAUSE_NS, _SHARE * (ended - begun))
        # A CPU that goes offline takes its counters along, and steal may decrease when a machine moves.
        asked, stolen = asked - self._first[0], stolen - self._first[1]
        if not self._first[0] or not 0 <= stolen <= asked:
            asked = stolen = 0
        return asked, stolen, max(queued, 0)


def _read(cpus: frozenset[bytes]) -> tuple[int, int]:
    """(ns that were asked for, ns that were stolen), since the start of the machine; 0 if that is not known."""
    try:
        with open(STAT, "rb", buffering=0) as file:
            return stolen_of(file.read(1 << 20), cpus)
    except (OSError, ValueError):
        return 0, 0


def stolen_of(stat: bytes, cpus: frozenset[bytes]) -> tuple[int, int]:
    """The same for the contents of /proc/stat. ``cpus``: the names of their lines, such as ``cpu0``."""
    asked = stolen = 0
    for line in stat.splitlines():
        if not line.startswith(b"cpu"):  # the CPUs come first
            break
        words = line.split()
        if words[0] in cpus and len(words) > _STEAL:
            user, nice, system, _, _, irq, softirq, steal = map(int, words[1 : _STEAL + 1])
            asked += user + nice + system + irq + softirq + steal
            stolen += steal
    return asked * TICK_NS, stolen * TICK_NS
