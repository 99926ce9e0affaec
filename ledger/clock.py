"""Converts the moments in a ledger from the writer's clock to the reader's clock.

A rank records moments of CLOCK_MONOTONIC, which starts at 0 when the machine boots. In another time namespace
(time_namespaces(7)) it has an offset. After a reboot it starts at 0 again, while a ledger on a disk is still there.
"""

from __future__ import annotations

import functools
import os
import time
from typing import NamedTuple

_HERTZ = os.sysconf("SC_CLK_TCK")
_TICKS_OF_64_BITS = -(-(_HERTZ << 64) // 1_000_000_000)
"""2^64 ns in ticks, rounded up."""


class Clock(NamedTuple):
    """The clock of one process. Offsets are ns, relative to the machine's clocks; 0 outside time namespaces."""

    boot: str
    """The kernel's boot id; empty if it cannot be read."""
    monotonic_offset_ns: int
    boottime_offset_ns: int


@functools.cache
def own_clock() -> Clock:
    """The clock of this process. It does not change while the process lives. Never raises."""
    offsets = parse_offsets(_read("/proc/self/timens_offsets"))  # since Linux 5.6
    return Clock(_read("/proc/sys/kernel/random/boot_id").strip(), *offsets)


def asleep_ns() -> int:
    """For how many ns CLOCK_MONOTONIC stood still since the machine's start, because the machine was suspended.

    The least of five differences to CLOCK_BOOTTIME: the process may lose its CPU between the readings of both.
    """
    return min(-time.monotonic_ns() + time.clock_gettime_ns(time.CLOCK_BOOTTIME) for _ in range(5))


def parse_offsets(text: str) -> tuple[int, int]:
    """Parses ``timens_offsets`` -> the offsets of CLOCK_MONOTONIC and CLOCK_BOOTTIME in ns; 0 for a missing one."""
    found = {"monotonic": 0, "boottime": 0}
    for line in text.splitlines():
        try:
            name, seconds, nanoseconds = line.split()
            found[name] = int(seconds) * 1_000_000_000 + int(nanoseconds)
        except ValueError:
            continue
    return found["monotonic"], found["boottime"]


def shift_ns(writer: Clock, created_unix_ns: int, created_ns: int, latest_ns: int) -> int:
    """How many ns to add to a moment of the writer's clock to get one of this process's clock.

    This is exact for a writer on this machine since its last boot. Otherwise both sides have only the wall clock in
    common: the writer recorded the creation of its ledger on both clocks. If the wall clock was set since then, the
    result is limited so that ``latest_ns`` does not lie in the future.
    """
    own = own_clock()
    if not writer.boot or not own.boot or writer.boot == own.boot:
        return own.monotonic_offset_ns - writer.monotonic_offset_ns
    now_ns = time.monotonic_ns()
    return min(now_ns - time.time_ns() + created_unix_ns - created_ns, now_ns - latest_ns)


def shift_ticks(writer: Clock) -> int:
    """How many ticks to add to a start time of ``/proc/<pid>/stat``: each reader sees it on its own clock."""
    own = own_clock()
    if writer.boot != own.boot:
        return 0  # processes of another machine, or from before the last boot, are not in this machine's /proc
    return (own.boottime_offset_ns - writer.boottime_offset_ns) * _HERTZ // 1_000_000_000


def signed_ticks(ticks: int) -> int:
    """Corrects a start time from ``/proc/<pid>/stat``: ticks of the reader's clock, negative if it had not started yet.

    The kernel keeps the ns as an unsigned 64-bit number and divides it after it has wrapped around (nsec_to_clock_t).
    """
    return ticks if ticks < _TICKS_OF_64_BITS // 2 else ticks - _TICKS_OF_64_BITS


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""
