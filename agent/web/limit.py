"""A rate limit for all requests together: a token bucket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .messages import Response, plain

_TOO_MANY = plain(429)


class Limit:
    """Allows one request per interval, and up to ``burst`` requests at once after a pause. Thread-safe."""

    def __init__(self, interval_seconds: float, burst: int, clock: Callable[[], float] = time.monotonic):
        self._interval = interval_seconds
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = float(burst)
        self._at = clock()

    def check(self) -> Response | None:
        """None if the request is allowed, otherwise the answer that refuses it."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) / self._interval)
            self._at = now
            if self._tokens < 1:
                return _TOO_MANY
            self._tokens -= 1
            return None
