"""The counters of Lustre's client per file system (llite.*.stats), and the state of its connections (osc.*.import).

Format: lustre/obdclass/lprocfs_status.c of Lustre: `name N samples [unit] min max sum sumsq`. For operations, Lustre
before 2.13 has only the number of samples ([regs]), later versions also have the duration ([usecs]).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..files import Unreadable

_LINE = re.compile(r"(\w+) +(\d{1,20}) samples \[(\w+)\](?: \d{1,20} \d{1,20} (\d{1,20})(?: \d{1,40})?)? *")
_TIME = re.compile(r"(?:snapshot|start|elapsed)_time[: ].*")
_STATE = re.compile(rb"^ +state: ([A-Z_]+) *$", re.M)
_DEVICE = re.compile(r"(.+)-(?:OST|MDT)[0-9a-f]{4}-(?:osc|mdc)-([0-9a-f]{8,16})")
_MICROSECONDS = ("usec", "usecs")
_CALLS = ("regs", "reqs")


@dataclass(slots=True)
class Stats:
    """Sums since the file system was mounted, or since somebody cleared them."""

    bytes: dict[str, tuple[int, int]] = field(default_factory=dict)  # read_bytes, ...: calls, bytes
    operations: dict[str, tuple[int, int | None]] = field(default_factory=dict)  # calls, microseconds if known
    bad: int = 0  # number of lines that could not be parsed


def parse(data: bytes) -> Stats:
    """Parses a stats file. Just after it was cleared, it contains only a time. Raises Unreadable for other content."""
    if not data.strip():
        raise Unreadable("empty")
    stats = Stats()
    known = False
    for line in data.decode("ascii", "replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            if _TIME.fullmatch(line):
                known = True
            else:
                stats.bad += bool(line.strip())
            continue
        known = True
        name, calls, unit = match[1], int(match[2]), match[3]
        total = int(match[4]) if match[4] else None
        if unit == "bytes" and total is not None:
            stats.bytes[name] = calls, total
        elif unit in (*_MICROSECONDS, *_CALLS):
            stats.operations[name] = calls, total if unit in _MICROSECONDS else None
    if not known:
        raise Unreadable("garbage")
    return stats


def state(data: bytes) -> str:
    """The state of a connection, such as FULL, IDLE or DISCONN. Raises Unreadable."""
    if match := _STATE.search(data):
        return match[1].decode()
    raise Unreadable("garbage" if data.strip() else "empty")


def file_system_of(connection: str) -> str | None:
    """The directory in llite to which a client's connection belongs. None for a server's own connection."""
    match = _DEVICE.fullmatch(connection)
    return f"{match[1]}-{match[2]}" if match else None
