"""What the training thread itself writes and reads: probably checkpoints and batches that no hook sees.

For each thread, the kernel counts what is written to files on a disk or a server, when it enters the page cache
(ru_oublock of getrusage(2)). Writes to sockets, pipes and tmpfs do not count. So neither the writes of other threads
nor what the loop sends over a network count here.

The kernel also counts what each thread reads by calls (rchar), what it reads from a disk (read_bytes, both in
proc_pid_io(5)), and its page faults that had to wait for a read (ru_majflt of getrusage(2)). A loop that takes its
batches from a memory-mapped file makes no calls, and is blocked in page faults instead.
"""

from __future__ import annotations

import resource
import threading

from ..handlers import pass_on

LONG_NS = 50_000_000
"""The shortest stretch that is looked at."""
_FRESH_NS = 20_000_000
"""The shortest time between two readings at the start of a stretch, because a reading costs 1 µs. What is written in
this time is less than _LEAST_BYTES."""
_LEAST_BYTES = 64 << 20
_LEAST_PER_SECOND = 16 << 20
"""In a stretch with less than this, something other than the writes takes the time."""


def _written() -> int:
    """Blocks of 512 bytes that the calling thread has written to files."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_oublock


class WriteMeter:
    """Measures what is written in a stretch. The training thread calls it where a stretch begins and ends."""

    __slots__ = ("_blocks", "due_ns", "saves")

    def __init__(self) -> None:
        self._blocks = 0
        self.due_ns = 0
        """The stretches that begin before this do not need a reading, unless the hooks have seen a save meanwhile."""
        self.saves = 0
        """How many saves the hooks had seen at the last reading."""

    def begin(self, now_ns: int, saves: int) -> None:
        """A stretch begins, and needs a reading."""
        self._blocks, self.due_ns, self.saves = _written(), now_ns + _FRESH_NS, saves

    def end(self, spent: int, saves: int) -> int:
        """A stretch of ``spent`` ns ends. Returns the bytes that were written if it was one of writing, otherwise 0."""
        if spent < LONG_NS or saves != self.saves:
            return 0
        written = (_written() - self._blocks) * 512
        return written if written >= max(_LEAST_BYTES, _LEAST_PER_SECOND * spent // 1_000_000_000) else 0


_OWN_IO = "/proc/thread-self/io"


class ReadMeter:
    """What a thread has read since the construction. The training thread must create it and call it."""

    __slots__ = ("_first", "_thread")

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._first = _reads()

    def read(self) -> tuple[int, int] | None:
        """(bytes that it read from files, its page faults that had to wait for a read). The bytes are 0 if unknown.

        None in another thread: a recording may end in one. What is read by calls from a disk counts twice in the
        kernel, so the larger of both numbers is taken.
        """
        if threading.get_ident() != self._thread:
            return None
        by_calls, from_disks, faults = (now - before for now, before in zip(_reads(), self._first, strict=True))
        return max(by_calls, from_disks, 0), max(faults, 0)


def _reads() -> tuple[int, int, int]:
    """(rchar, read_bytes, major page faults) of the calling thread."""
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    try:
        with open(_OWN_IO, "rb", buffering=0) as file:
            lines = dict(line.split(b": ") for line in file.read(1024).splitlines())
        return int(lines[b"rchar"]), int(lines[b"read_bytes"]), faults
    except (OSError, ValueError, KeyError) as error:  # the kernel does not count them, or does not tell
        pass_on(error)
        return 0, 0, faults
