"""Finds stretches of the loop's own Python in which it wrote files: probably checkpoints that no hook sees.

For each thread, the kernel counts what is written to files on a disk or a server, when it enters the page cache
(ru_oublock of getrusage(2)). Writes to sockets, pipes and tmpfs do not count. So neither the writes of other threads
nor what the loop sends over a network count here.
"""

from __future__ import annotations

import resource

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
