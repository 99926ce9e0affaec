"""Batches that the loop takes and does not compute on, for example to skip what it had trained on before a restart."""

from __future__ import annotations

from ..ledger.layout import WORD_AT

AT = tuple(WORD_AT[name][0] for name in ("skipped_batches", "skipped_ns", "skips"))
"""The indexes of the words of the ledger to which `Skips.end` adds."""
UNUSED_NS = 1_000_000
"""A loop that asks for the next batch within this time has not computed on this one."""
LEAST = 16
"""A run of fewer such batches is not counted: a step may need several batches."""


class Skips:
    """The open run of such batches. Times are ns of CLOCK_MONOTONIC."""

    __slots__ = ("_asked_ns", "_ns", "_since_ns", "came_ns", "count")

    def __init__(self) -> None:
        self.count = 0
        """The batches of the run so far."""
        self.came_ns = 0
        """When the last batch arrived."""
        self._asked_ns = self._since_ns = self._ns = 0

    def asked(self, now_ns: int, *, unused: bool) -> None:
        """The loop asks for a batch. ``unused``: there was no backward pass on the last one, which was for training."""
        if unused and now_ns - self.came_ns < UNUSED_NS:
            if not self.count:
                self._since_ns = self._asked_ns
            self.count += 1
            self._ns = now_ns - self._since_ns
        self._asked_ns = now_ns

    def taken_in_advance(self) -> None:
        """A backward pass begins on one of these batches after all."""
        if self.count:
            self.count -= 1

    def end(self) -> tuple[int, int, int] | None:
        """A step ends. Returns by how much the words at AT grow; None if no batches were skipped."""
        count, self.count = self.count, 0
        return (count, self._ns, 1) if count >= LEAST else None
