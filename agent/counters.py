"""Turns other values into counters: 32-bit values that wrap, and levels that are integrated over time.

A counter that its source has reset is passed on unchanged: Prometheus handles resets, and the lost part is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

_WRAP = 1 << 32
_HALF = 1 << 31


class Wrapping(Generic[Key]):
    """Continues 32-bit counters beyond 2**32.

    A fall from the upper half of the range into the lower half is a wrap. Any other fall is a reset, after which the
    counter starts again. This is correct if a counter grows by less than 2**31 between two scrapes.
    """

    def __init__(self) -> None:
        self._last: dict[Key, tuple[int, int]] = {}  # raw value, sum of the wraps so far

    def value(self, key: Key, raw: int) -> int:
        last, offset = self._last.get(key, (0, 0))
        if raw < last:
            offset = offset + _WRAP if last >= _HALF > raw and last < _WRAP else 0
        self._last[key] = (raw, offset)
        return offset + raw

    def keep(self, keys: Collection[Key]) -> None:
        """Forgets all other keys."""
        for key in self._last.keys() - set(keys):
            del self._last[key]


class Accumulator(Generic[Key]):
    """Sums per key that start at 0 and only grow: ∫ level dt, or a number of events. A forgotten key restarts at 0."""

    def __init__(self) -> None:
        self._sums: dict[Key, float] = {}

    def add(self, key: Key, amount: float) -> float:
        """Adds an amount and returns the sum. Raises ValueError if the amount is negative."""
        if amount < 0:
            raise ValueError(f"a counter cannot decrease: {key!r} by {amount}")
        total = self._sums.get(key, 0) + amount
        self._sums[key] = total
        return total

    def get(self, key: Key) -> float | None:
        return self._sums.get(key)

    def items(self) -> list[tuple[Key, float]]:
        return list(self._sums.items())

    def keep(self, keys: Collection[Key]) -> None:
        """Forgets all other keys."""
        for key in self._sums.keys() - set(keys):
            del self._sums[key]
