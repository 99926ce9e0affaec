"""/proc/stat and /proc/loadavg.

Format: https://docs.kernel.org/filesystems/proc.html#miscellaneous-kernel-statistics-in-proc-stat
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..files import Unreadable

MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""The first columns of the line `cpu`. The next two, guest and guest_nice, are already part of user and nice."""
LINES = ("ctxt", "btime", "processes", "procs_running", "procs_blocked")

_CPU = re.compile(rb"cpu +(\d{1,20}(?: \d{1,20}){7,})")
_LOAD = re.compile(rb"(\d+\.\d+) (\d+\.\d+) (\d+\.\d+) \d+/\d+ \d+\n?")


@dataclass(slots=True)
class Stat:
    """The values of /proc/stat that could be parsed."""

    ticks: dict[str, int] = field(default_factory=dict)  # mode -> ticks of USER_HZ, over all CPUs
    online: int = 0
    values: dict[str, int] = field(default_factory=dict)  # line -> value
    bad: list[str] = field(default_factory=list)  # lines that are missing or invalid


def parse(data: bytes) -> Stat:
    """Parses /proc/stat. Raises Unreadable if no line is valid."""
    if not data.strip():
        raise Unreadable("empty")
    stat = Stat(online=data.count(b"\ncpu"))
    match = _CPU.fullmatch(data[: data.find(b"\n")])
    if match:
        stat.ticks = dict(zip(MODES, map(int, match[1].split()), strict=False))
    else:
        stat.bad.append("cpu")
    # These lines follow the line of interrupts, which has tens of thousands of bytes on large machines.
    tail = data[max(data.find(b"\nctxt "), data.rfind(b"\nintr "), 0) :]
    for line in LINES:
        start = tail.find(b"\n%s " % line.encode()) + len(line) + 2
        value = tail[start : tail.find(b"\n", start)]
        if start > len(line) + 1 and value.isdigit() and len(value) <= 20:
            stat.values[line] = int(value)
        else:
            stat.bad.append(line)
    if not stat.ticks and not stat.values:
        raise Unreadable("garbage")
    return stat


def load(data: bytes) -> tuple[float, float, float]:
    """The load averages over 1, 5 and 15 minutes. Raises Unreadable."""
    if match := _LOAD.fullmatch(data):
        return float(match[1]), float(match[2]), float(match[3])
    raise Unreadable("garbage" if data.strip() else "empty")
