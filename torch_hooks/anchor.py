"""Maps device time to the host's clock: from an event with known host time (the anchor), counts device time.

The device passes an event after the event was recorded, after it was last seen unfinished, and before it was seen done.
If an estimate is outside these bounds, the anchor is wrong: the clocks drift, or the anchor was recorded after work of
unknown length. Then the anchor is moved, so that an error is corrected once and not in every later interval.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ANCHOR_NS = 2_000_000_000
"""How long an anchor is used. CUDA reports float32 milliseconds: below 2.048 s, their resolution is 0.13 µs or less."""

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
        """When the device passed an event of the source: at ``earliest_ns`` or later, and at ``seen_ns`` or earlier.

        Releases the event, unless it becomes the anchor.
        """
        # Comparisons, not max and min: this runs at every boundary.
        elapsed = None if self._event is None else self._elapsed(self._event, event)
        if elapsed is None:
            self._move(event, earliest_ns)
            return earliest_ns
        # Counted from the anchor, not from the previous event: otherwise each interval would add a rounding error.
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
        """When the device passed an event of the training. Such an event does not move the anchor. None if unknown."""
        elapsed = None if self._event is None else self._elapsed(self._event, event)
        return None if elapsed is None else self._at_ns + elapsed

    def drop(self) -> None:
        """Forgets the anchor. Does not release its event, because the device may be lost."""
        self._event = None

    def _move(self, event: Any, at_ns: int) -> None:
        if self._event is not None:
            self._release(self._event)
        self._event = event
        self._at_ns = at_ns
