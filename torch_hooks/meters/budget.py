"""Limits how often a meter may ask the kernel, so that its readings take at most a thousandth of the time.

The cost of a reading is measured, because it varies: 1 µs per thread on an idle machine was 10 µs and more on busy
cores with cold caches.
"""

from __future__ import annotations

_SHARE = 1000
"""Readings take at most this part of the time."""
_LONGEST_NS = 200_000_000
"""The longest pause after a reading. A reading that was interrupted seems expensive."""
_AT_FIRST_NS = 10_000


def usual(ns: int, last_ns: int) -> int:
    """What a reading that took ``ns`` costs: at most twice the last one, because a longer one was interrupted.

    ``last_ns``: what that cost; 0 if there was none.
    """
    return min(ns, 2 * last_ns) if last_ns else ns


class Budget:
    """The budget of one meter, in ns of CLOCK_MONOTONIC."""

    __slots__ = ("_cost", "free_ns")

    def __init__(self) -> None:
        self._cost = _AT_FIRST_NS
        self.free_ns = 0
        """When the next reading is allowed."""

    def spend(self, ns: int, now_ns: int) -> None:
        """A reading took ``ns`` until ``now_ns``."""
        self._cost = ns = usual(ns, self._cost)
        self.free_ns = now_ns + min(_SHARE * ns, _LONGEST_NS)
