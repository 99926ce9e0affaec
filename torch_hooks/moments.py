"""Random times, one in each period: looks at fixed distances could meet the rhythm of the loop."""

from __future__ import annotations

import random


class Moments:
    """One random time in each period."""

    def __init__(self) -> None:
        self._random = random.Random()  # not the global one: the training may have seeded that
        self._rest = 0.0

    def pause(self, period: float) -> float:
        """Seconds until the time in the next period, which lasts this many seconds."""
        at = self._random.random() * period
        pause, self._rest = self._rest + at, period - at
        return pause
