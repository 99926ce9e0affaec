"""Making counters of what is none: values that wrap at 32 bits, and levels that are integrated over time.

A counter that its source set back is handed on as it is: Prometheus knows resets, and inventing the lost part would be
a number without evidence.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

_WRAP = 1 << 32
_HALF = 1 << 31


class Wrapping(Generic[Key]):
    """Counters of 32 bits, continued beyond.

    A fall from the upper half of the range into the lower is a wrap; any other fall is a reset, after which the counter
    starts anew. Correct if a counter grows by less than 2**31 between two scrapes.
    """

    def __init__(self) -> None:
        self._last: dict[Key, tuple[int, int]] = {}  # raw value, what the wraps so far amount to

    def value(self, key: Key, raw: int) -> int:
        last, offset = self._last.get(key, (0, 0))
        if raw < last:
            offset = offset + _WRAP if last >= _HALF > raw and last < _WRAP else 0
        self._last[key] = (raw, offset)
        return offset + raw

    def keep(self, keys: Collection[Key]) -> None:
        """Forgets all others."""
        for key in self._last.keys() - set(keys):
            del self._last[key]


class Accumulator(Generic[Key]):
    """Sums per key that only grow, from 0 on: ∫ level dt, or a count of events. A key that is forgotten starts anew."""

    def __init__(self) -> None:
        self._sums: dict[Key, float] = {}

    def add(self, key: Key, amount: float) -> float:
        """Adds an amount, which may be 0, and returns the sum. Raises ValueError if it is negative."""
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
        """Forgets all others."""
        for key in self._sums.keys() - set(keys):
            del self._sums[key]
