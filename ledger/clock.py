"""Whose clock the moments of a ledger are on, and how far a reader must move them to have them on its own.

A rank notes moments of CLOCK_MONOTONIC, which starts with the machine. It starts elsewhere for a rank in another time
namespace (time_namespaces(7)), and anew when the machine starts again, while a ledger on a disk stays.
"""

from __future__ import annotations

import functools
import os
import time
from typing import NamedTuple

_HERTZ = os.sysconf("SC_CLK_TCK")
_TICKS_OF_64_BITS = -(-(_HERTZ << 64) // 1_000_000_000)
"""How many ticks 64 bits of ns are, rounded up."""


class Clock(NamedTuple):
    """The clock of one process. Offsets are ns, against the machine's own clocks; 0 outside time namespaces."""

    boot: str
    """The id that the kernel made when it started; empty where it does not tell."""
    monotonic_offset_ns: int
    boottime_offset_ns: int


@functools.cache
def own_clock() -> Clock:
    """The clock of this process, which it keeps for life. Never raises."""
    offsets = parse_offsets(_read("/proc/self/timens_offsets"))  # since Linux 5.6
    return Clock(_read("/proc/sys/kernel/random/boot_id").strip(), *offsets)


def parse_offsets(text: str) -> tuple[int, int]:
    """``timens_offsets`` -> the offsets of CLOCK_MONOTONIC and CLOCK_BOOTTIME, ns; what it does not say is 0."""
    found = {"monotonic": 0, "boottime": 0}
    for line in text.splitlines():
        try:
            name, seconds, nanoseconds = line.split()
            found[name] = int(seconds) * 1_000_000_000 + int(nanoseconds)
        except ValueError:
            continue
    return found["monotonic"], found["boottime"]


def shift_ns(writer: Clock, created_unix_ns: int, created_ns: int, latest_ns: int) -> int:
    """What to add to the moments of a writer's clock.

    On one machine since one start that is exact. Otherwise only the wall clock is common to both: the writer noted one
    moment, its ledger's creation, on both clocks. If it was set since, the latest moment does not become a future one.
    """
    own = own_clock()
    if not writer.boot or not own.boot or writer.boot == own.boot:
        return own.monotonic_offset_ns - writer.monotonic_offset_ns
    now_ns = time.monotonic_ns()
    return min(now_ns - time.time_ns() + created_unix_ns - created_ns, now_ns - latest_ns)


def shift_ticks(writer: Clock) -> int:
    """What to add to a start time of ``/proc/<pid>/stat``, which says each reader its own clock's."""
    own = own_clock()
    if writer.boot != own.boot:
        return 0  # another machine's processes, or those before its last start: none is here
    return (own.boottime_offset_ns - writer.boottime_offset_ns) * _HERTZ // 1_000_000_000


def signed_ticks(ticks: int) -> int:
    """A start time as ``/proc/<pid>/stat`` has it -> ticks of the reader's clock, negative before that began.

    The kernel keeps ns in 64 bits without a sign, and divides what has wrapped around (nsec_to_clock_t).
    """
    return ticks if ticks < _TICKS_OF_64_BITS // 2 else ticks - _TICKS_OF_64_BITS


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""
