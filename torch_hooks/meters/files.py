"""Finds stretches of the loop's own Python in which it wrote files: checkpoints that no hook knows.

The kernel counts, per thread, what is written to files that have a disk or a server behind them, when it enters the
page cache (ru_oublock of getrusage(2); what goes to sockets, pipes and tmpfs does not count). So what other threads
write is not taken for the loop's, nor is what the loop sends.
"""

from __future__ import annotations

import resource

_LONG_NS = 50_000_000
_FRESH_NS = 20_000_000
"""A reading costs 1 µs: short steps share one. What is written in so short a time is below the least that counts."""
_LEAST_BYTES = 64 << 20
_LEAST_PER_SECOND = 16 << 20
"""A slower stretch has something else that takes its time."""


def _written() -> int:
    """Blocks of 512 bytes that the calling thread has written to files."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_oublock


class WriteMeter:
    """Asked by the training thread where a stretch begins and ends."""

    __slots__ = ("_blocks", "_ns", "_open", "_read_ns", "_saves")

    def __init__(self) -> None:
        self._open = False
        self._blocks = self._ns = self._saves = 0
        self._read_ns = -_FRESH_NS

    def begin(self, now_ns: int, ns: int, saves: int) -> None:
        """``ns`` is the time in such stretches so far; ``saves`` counts the brackets of saves so far."""
        self._ns, self._open = ns, True
        if now_ns - self._read_ns >= _FRESH_NS or saves != self._saves:
            self._blocks, self._read_ns, self._saves = _written(), now_ns, saves

    def end(self, ns: int, saves: int) -> tuple[int, int]:
        """-> (ns, bytes) of the stretch, where it was one of writing; else (0, 0)."""
        spent = ns - self._ns
        if not self._open or spent < _LONG_NS or saves != self._saves:
            self._open = False
            return 0, 0
        self._open = False
        written = (_written() - self._blocks) * 512
        if written < _LEAST_BYTES or written * 1_000_000_000 < _LEAST_PER_SECOND * spent:
            return 0, 0
        return spent, written
