"""What a data worker has read from files, by the kernel's counters of its process (proc_pid_io(5))."""

from __future__ import annotations

import os
from typing import NamedTuple

from ...ledger.layout import WORD_AT
from .. import proc

READ_AT = WORD_AT["worker_read_bytes"][0]
"""The index of the first of three words of the ledger, in the order of `Reads`."""


class Reads(NamedTuple):
    """Cumulative, with the programs of the worker that have ended."""

    bytes: int
    """What its calls returned, also from the page cache, pipes and devices."""
    calls: int
    disk: int
    """What a disk had to read for it, also for mapped files."""


def reads_of(pid: int) -> Reads | None:
    """None if the process has ended, or if the kernel does not count it or does not tell."""
    try:
        fd = os.open(f"/proc/{pid}/io", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return parse(os.read(fd, 1024))
        finally:
            os.close(fd)
    except (OSError, ValueError, KeyError):
        return None


def faults_of(pid: int) -> int:
    """The page faults of a worker's main thread that had to wait for a read (majflt of proc_pid_stat(5)); 0 if it has
    ended."""
    fields = proc.read_bytes(f"/proc/{pid}/task/{pid}/stat", 512).rpartition(b")")[2].split()
    return int(fields[9]) if len(fields) > 9 else 0


def parse(text: bytes) -> Reads:
    lines = dict(line.split(b": ") for line in text.splitlines())
    return Reads(int(lines[b"rchar"]), int(lines[b"syscr"]), int(lines[b"read_bytes"]))
