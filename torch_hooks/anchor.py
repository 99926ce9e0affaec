"""Device time on the host's clock: an event whose host time is known, and device time counted from it.

An event was passed after it was recorded, after it was last seen unfinished, and before it was seen done. An estimate
outside these bounds shows that the anchor is off (the clocks drift, or it was recorded behind work of unknown length):
the anchor is moved, so that an error is corrected once, not in every interval that follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ANCHOR_NS = 2_000_000_000
"""An anchor serves this long. CUDA reports float32 milliseconds: below 2.048 s their steps are at most 0.13 us."""

Elapsed = Callable[[Any, Any], "int | None"]


class Anchor:
    """Places events of one source on the host's clock. All times are ns of CLOCK_MONOTONIC."""

    __slots__ = ("_at_ns", "_elapsed", "_event", "_release")

    def __init__(self, elapsed: Elapsed, release: Callable[[Any], None]):
        self._elapsed = elapsed
        self._release = release
        self._event: Any = None
        self._at_ns = 0

    def place(self, event: Any, earliest_ns: int, seen_ns: int) -> int:
        """When the device passed an event of the source: not before ``earliest_ns``, and by ``seen_ns``.

        The event is released, unless it is the anchor from now on.
        """
        # Comparisons, not max and min: this runs at every boundary.
        elapsed = None if self._event is None else self._elapsed(self._event, event)
        if elapsed is None:
            self._move(event, earliest_ns)
            return earliest_ns
        # Always from the anchor, never from the event before: else each interval would add its own rounding.
        at = self._at_ns + elapsed
        bounded = earliest_ns if at < earliest_ns else seen_ns if at > seen_ns else at
        if bounded != at:
            self._at_ns += bounded - at
        if elapsed >= ANCHOR_NS:
            self._move(event, bounded)
        else:
            self._release(event)
        return bounded

    def passed_ns(self, event: Any) -> int | None:
        """When the device passed an event that is not the source's: it is no evidence of where the anchor is."""
        elapsed = None if self._event is None else self._elapsed(self._event, event)
        return None if elapsed is None else self._at_ns + elapsed

    def drop(self) -> None:
        """Does not release the event: the device may be lost."""
        self._event = None

    def _move(self, event: Any, at_ns: int) -> None:
        if self._event is not None:
            self._release(self._event)
        self._event = event
        self._at_ns = at_ns
