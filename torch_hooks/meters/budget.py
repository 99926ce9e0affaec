"""How often a meter may ask the kernel, so that its readings take a hundredth of the time and no more.

What a reading costs is measured, not assumed: 1 µs a thread on an idle machine was 10 µs and more where the cores were
busy and their caches cold.
"""

from __future__ import annotations

_SHARE = 100
_LONGEST_NS = 200_000_000
"""A reading that was interrupted seems dear. It stops the next one for so long at most."""
_AT_FIRST_NS = 10_000


class Budget:
    """Of one meter, in ns of CLOCK_MONOTONIC."""

    __slots__ = ("_cost", "free_ns")

    def __init__(self) -> None:
        self._cost = _AT_FIRST_NS
        self.free_ns = 0
        """When the next reading may be."""

    def spend(self, ns: int, now_ns: int) -> None:
        """A reading took so long, until now. One that is far dearer than the last was interrupted: it counts as two."""
        self._cost = ns = min(ns, 2 * self._cost)
        self.free_ns = now_ns + min(_SHARE * ns, _LONGEST_NS)
