"""How long a look has waited for Python's lock, and so whether the training thread held it when the look was due."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from typing import NamedTuple

from .tasks import open_schedstat, read_schedstat

PROMPT_NS = 1_000_000
"""A look that is later than this, beyond its own wait for a CPU, has waited for Python's lock."""
_BRIEF_NS = 200_000
"""A look that is later by this than the earliest of the last _KEPT prompt ones has probably waited for it, too."""
_KEPT, _ENOUGH = 16, 4


class Delay(NamedTuple):
    """Of a look. None of these: it was prompt."""

    held: bool = False
    """Python's lock was held when it was due, until the thread that held it gave it up by itself. So that thread is now
    in the call for which it did, and was elsewhere when the look was due."""
    forced: bool = False
    """A thread ran Python code when it was due, and until now. It then gives the lock up after the switch interval."""
    long: bool = False
    """The lock was held for longer than Python code is let to hold it: in a call."""
    brief: bool = False
    """The lock was probably held when it was due, for less than PROMPT_NS. Not if ``held``."""


PROMPT, _FORCED, _BRIEF = Delay(), Delay(forced=True), Delay(brief=True)


class Lateness:
    """Of the thread that calls it. A wait for a CPU does not count: the training thread goes on meanwhile."""

    def __init__(self) -> None:
        self.due = self._queued = self._tid = self._period = self._periods = 0
        self._fd = -1  # this thread's schedstat
        self._prompt: deque[int] = deque(maxlen=_KEPT)  # how late the last prompt looks were

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def expect(self, due_ns: int, period_ns: int) -> None:
        """The next look is at this time (CLOCK_MONOTONIC), at random in a period."""
        self.due, self._queued = due_ns, self._queue()
        self._period = period_ns or self._period
        self._periods += period_ns

    def stands_for(self, now: int) -> int:
        """For how many ns a look stands that begins now.

        That is its period, earlier ones without a look and, if it is late, the mean time of those whose look would have
        been due meanwhile: the same call has prevented it.
        """
        periods, self._periods = self._periods, 0
        late, period = max(0, now - self.due), self._period
        return periods + (late * late // (2 * period) if late < period else late - period // 2)

    def soon(self, due_ns: int) -> None:
        """The same, right after a look."""
        self.due = due_ns

    def is_long(self, now: int) -> bool:
        """Whether a look that begins now is so late that it has waited for a call, or for a CPU. Keeps Python's
        lock."""
        return now - self.due >= sys.getswitchinterval() * 1e9 + PROMPT_NS

    def how(self, now: int) -> Delay:
        """Of a look that begins now. A part of its wait for a CPU may have come after ``now``."""
        late = now - self.due
        if late < PROMPT_NS:
            beyond = late - min(self._prompt) if len(self._prompt) >= _ENOUGH else 0
            self._prompt.append(late)
            # To read the queue gives Python's lock up.
            return _BRIEF if beyond >= _BRIEF_NS and beyond - self._queue() + self._queued >= _BRIEF_NS else PROMPT
        interval = sys.getswitchinterval() * 1e9
        if interval <= late < interval + PROMPT_NS:
            return _FORCED
        late -= self._queue() - self._queued
        if interval <= late < interval + PROMPT_NS:
            return _FORCED
        return PROMPT if late < PROMPT_NS else Delay(held=True, long=late >= interval + PROMPT_NS)

    def _queue(self) -> int:
        """How many ns the calling thread has been runnable without a CPU."""
        tid = threading.get_native_id()
        if tid != self._tid:
            self._tid = tid
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = open_schedstat(os.getpid(), tid)
        try:
            return read_schedstat(self._fd)[1]
        except (OSError, ValueError, IndexError):
            return 0
