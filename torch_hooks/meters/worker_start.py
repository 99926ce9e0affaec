"""Notes when a new data worker takes its first request.

Before that, it imports modules, copies the dataset and runs `worker_init_fn`. The training thread is blocked in the
loader meanwhile, so a short-lived thread asks now and then how many requests are left in the worker's queue.
"""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

from .. import background
from ..tasks import CpuTimes, WorkerClock
from .worker_reads import Reads, reads_of

_LEAST_SECONDS, _MOST_SECONDS, _PART = 0.002, 0.25, 0.02
"""The pause between two questions is this part of the time so far, within these limits."""


class Taken(NamedTuple):
    """What was read when it was found that a worker has taken its first request."""

    ns: int
    """CLOCK_MONOTONIC."""
    times: CpuTimes | None
    reads: Reads | None


class StartWatch:
    """Watches one worker until it has taken a request or ``stop`` is called.

    It must not keep the loader's iterator alive: the loader ends its workers when nobody refers to that any more.
    """

    __slots__ = ("_pid", "_queue", "_requests", "_running", "taken")

    def __init__(self, queue: Any, requests: int, pid: int):
        """``requests`` have been put into the worker's ``queue``. No others may be put until ``stop``."""
        self._queue: Any = queue
        self._requests = requests
        self._pid = pid
        self.taken: Taken | None = None
        self._running = threading.Lock()  # until it is released, the thread goes on
        self._running.acquire()
        background.start(self._run, "whyidle-data-start")

    def again(self) -> StartWatch:
        """Watches the worker again, after ``stop``."""
        return StartWatch(self._queue, self._requests, self._pid)

    def stop(self) -> Taken | None:
        """Ends the watch. Returns what was found; None if the worker was not seen to have taken a request."""
        if self._running.locked():
            self._running.release()
        return self.taken

    def _run(self) -> None:
        clock = WorkerClock(self._pid)
        begun = time.monotonic()
        pause = _LEAST_SECONDS
        try:
            while not self._running.acquire(timeout=pause):
                if self._queue.qsize() < self._requests:
                    self.taken = Taken(time.monotonic_ns(), clock.read(), reads_of(self._pid))
                    break
                pause = min(max(_LEAST_SECONDS, _PART * (time.monotonic() - begun)), _MOST_SECONDS)
        except Exception:  # the queue is closed
            pass
        finally:
            clock.close()
