"""A limit to how often anybody is answered: a token bucket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .messages import Response, plain

_TOO_MANY = plain(429)


class Limit:
    """One request per interval, and ``burst`` of them at once after a rest. Safe to use from several threads."""

    def __init__(self, interval_seconds: float, burst: int, clock: Callable[[], float] = time.monotonic):
        self._interval = interval_seconds
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = float(burst)
        self._at = clock()

    def check(self) -> Response | None:
        """None, or what to answer instead."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) / self._interval)
            self._at = now
            if self._tokens < 1:
                return _TOO_MANY
            self._tokens -= 1
            return None
