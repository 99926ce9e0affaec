"""Finds stretches of the loop's own Python in which it wrote files: probably checkpoints that no hook sees.

For each thread, the kernel counts what is written to files on a disk or a server, when it enters the page cache
(ru_oublock of getrusage(2)). Writes to sockets, pipes and tmpfs do not count. So neither the writes of other threads
nor what the loop sends over a network count here.
"""

from __future__ import annotations

import resource

_LONG_NS = 50_000_000
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

    __slots__ = ("_blocks", "_ns", "_open", "_read_ns", "_saves")

    def __init__(self) -> None:
        self._open = False
        self._blocks = self._ns = self._saves = 0
        self._read_ns = -_FRESH_NS

    def begin(self, now_ns: int, ns: int, saves: int) -> None:
        """A stretch begins. ``ns``: the time in stretches so far; ``saves``: how many saves the hooks have seen."""
        self._ns, self._open = ns, True
        if now_ns - self._read_ns >= _FRESH_NS or saves != self._saves:
            self._blocks, self._read_ns, self._saves = _written(), now_ns, saves

    def end(self, ns: int, saves: int) -> tuple[int, int]:
        """The stretch ends. Returns its (ns, bytes) if it was one of writing, otherwise (0, 0)."""
        spent = ns - self._ns
        if not self._open or spent < _LONG_NS or saves != self._saves:
            self._open = False
            return 0, 0
        self._open = False
        written = (_written() - self._blocks) * 512
        if written < _LEAST_BYTES or written * 1_000_000_000 < _LEAST_PER_SECOND * spent:
            return 0, 0
        return spent, written
