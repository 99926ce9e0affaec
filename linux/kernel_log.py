"""The kernel's log, as /dev/kmsg gives it: which processes the kernel has killed because memory ran out, and the errors
that NVIDIA's driver reports (XIDs).

Formats: https://docs.kernel.org/admin-guide/abi-testing.html (dev-kmsg); messages of mm/oom_kill.c and
mm/memcontrol-v1.c. The line `oom-kill:` is there since Linux 5.0. NVIDIA's are as its guide on XID errors has them:
https://docs.nvidia.com/deploy/xid-errors/working-with-xid-errors.html.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .unreadable import Unreadable, reason_of

_RECORD_BYTES = 8192
"""A record is at most this long (CONSOLE_EXT_LOG_MAX)."""
_MOST_RECORDS = 1 << 17

_RECORD = re.compile(rb"\d+,\d+,(\d{1,19}),[^;]*;([^\n]*)")
_BEGINS = re.compile(rb".{1,64} invoked oom-killer:")
_USAGE = re.compile(rb"memory: usage (\d{1,16})kB, limit (\d{1,16})kB")
_CHOSEN = re.compile(rb"oom-kill:constraint=\w+,.*?(?:,oom_memcg=([^,]*))?,task_memcg=([^,]*),task=.*,pid=(\d{1,10}),")
_KILLED = re.compile(rb"(Memory cgroup o|O)ut of memory: Killed process (\d{1,10}) \((.*)\) total-vm:")
_XID = re.compile(rb"NVRM: Xid \(PCI:([0-9a-fA-F:.]{7,16})\): (\d{1,4}),")


@dataclass(frozen=True, slots=True)
class OomVictim:
    """A process that the kernel has killed because memory ran out."""

    at_ns: int
    """By the clock of the log, which runs like CLOCK_MONOTONIC but is not adjusted."""
    pid: int
    """In the node's pid namespace."""
    name: str
    group: str
    """The path of its control group; empty if not known."""
    limit: int
    """Bytes: the limit that a control group had reached; 0: the node's memory ran out."""


class XidError(NamedTuple):
    """An error that NVIDIA's driver has reported."""

    at_ns: int
    """By the clock of the log, as `OomVictim.at_ns`."""
    pci: str
    """The address of the GPU, such as 0000:3b:00."""
    xid: int


def xid_errors(records: Iterable[bytes]) -> list[XidError]:
    """Oldest first."""
    found: list[XidError] = []
    for record in records:
        match = _RECORD.match(record)
        if match is not None and (error := _XID.match(match[2])) is not None:
            found.append(XidError(1000 * int(match[1]), error[1].decode(), int(error[2])))
    return found


def oom_victims(records: Iterable[bytes]) -> list[OomVictim]:
    """The processes that the kernel has killed because memory ran out, oldest first."""
    found: list[OomVictim] = []
    limit, group = 0, ""
    for record in records:
        if (match := _RECORD.match(record)) is None:
            continue
        at, said = match.groups()
        if _BEGINS.match(said):
            limit, group = 0, ""
        elif usage := _USAGE.match(said):
            limit = 1024 * int(usage[2])
        elif chosen := _CHOSEN.match(said):
            group = chosen[2].decode("utf-8", "replace")
        elif killed := _KILLED.match(said):
            of_group = killed[1] != b"O"
            name = killed[3].decode("utf-8", "replace")
            found.append(OomVictim(1000 * int(at), int(killed[2]), name, group, limit if of_group else 0))
    return found


def records(path: str) -> Iterator[bytes]:
    """The records that the log still has, oldest first. Raises Unreadable: many systems allow this to root only."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unreadable(reason_of(error), path) from error
    try:
        for _ in range(_MOST_RECORDS):
            try:
                record = os.read(fd, _RECORD_BYTES)
            except BrokenPipeError:  # newer records have overwritten the next one
                continue
            except BlockingIOError:
                return
            except OSError as error:
                raise Unreadable(reason_of(error), path) from error
            if not record:
                return
            yield record
    finally:
        os.close(fd)
