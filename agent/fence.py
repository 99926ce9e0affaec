"""Runs each collector under a deadline. A collector that hangs or fails loses only its own series.

All collectors run one after the other in one worker thread, so that a scrape needs a single thread switch. If a
collector exceeds its deadline, its thread is abandoned and a new thread runs the remaining collectors. A collector that
hangs is not started again, so there is never more than one stuck thread per collector. When it returns after all, its
thread ends, its reading is discarded, and the next round starts it again. The round as a whole has a deadline too, for
the case that many collectors are slow but within their own deadlines.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Literal

from .collector import Collector
from .reading import Absent, Reading

State = Literal["up", "absent", "fault", "deadline", "hanging", "skipped"]
"""`hanging`: not started, because an earlier call has not returned. `skipped`: the round had no time left."""


@dataclass(slots=True)
class Result:
    """The result of one collector in one round."""

    state: State
    reading: Reading | None = None  # only if the state is "up"
    seconds: float = 0.0
    detail: str = ""  # absent: what was looked for; fault: the exception


class _Fence:
    """A collector, and whether a thread is stuck in it."""

    __slots__ = ("collector", "name", "stuck")

    def __init__(self, name: str, collector: Collector):
        self.name = name
        self.collector = collector
        self.stuck = False

    def run(self) -> Result:
        reading = Reading()
        start = time.monotonic()
        try:
            self.collector.collect(reading)
        except Absent as absence:
            return Result("absent", seconds=time.monotonic() - start, detail=str(absence))
        except Exception as error:  # a fault of one collector must not affect the others
            return Result("fault", seconds=time.monotonic() - start, detail=f"{type(error).__name__}: {error}")
        return Result("up", reading, time.monotonic() - start)


class _Worker:
    """A thread that runs collectors, until it is abandoned because one of them exceeded its deadline."""

    def __init__(self) -> None:
        self._inbox: SimpleQueue[list[_Fence] | None] = SimpleQueue()
        self._outbox: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        self._running: tuple[_Fence, float] | None = None
        self._results: dict[str, Result] = {}
        self.abandoned = False
        threading.Thread(target=self._work, name="collectors", daemon=True).start()

    def run(
        self, fences: list[_Fence], deadline_seconds: float, until: Callable[[], float]
    ) -> tuple[dict[str, Result], _Fence | None]:
        """Runs the fences. Returns the results so far, and the fence that exceeded its deadline, if one did.

        In the latter case this worker is abandoned. ``until`` returns the end of the round, on the monotonic clock. At
        that moment the worker is abandoned in any case.
        """
        self._results = {}  # nothing is running now: otherwise this worker would have been abandoned
        self._inbox.put(fences)
        pause = min(deadline_seconds, until() - time.monotonic())
        while True:
            try:
                self._outbox.get(timeout=max(pause, 0))
                return self._results, None
            except Empty:
                pass
            with self._lock:
                now = time.monotonic()
                fence, since = self._running or (None, now)  # None: between two fences, or still waiting for a CPU
                pause = min(since + deadline_seconds, until()) - now
                if pause <= 0:
                    self._abandon(fence, now - since)
                    return self._results, fence

    def stop(self) -> None:
        self._inbox.put(None)

    def _abandon(self, fence: _Fence | None, seconds: float) -> None:
        self.abandoned = True
        self.stop()
        if fence:
            fence.stuck = True
            self._results[fence.name] = Result("deadline", seconds=seconds)

    def _work(self) -> None:
        while (fences := self._inbox.get()) is not None:
            for fence in fences:
                with self._lock:
                    if self.abandoned:
                        return
                    self._running = (fence, time.monotonic())
                result = fence.run()
                with self._lock:
                    self._running = None
                    if self.abandoned:
                        fence.stuck = False
                        return
                    self._results[fence.name] = result
            self._outbox.put(None)


class Fences:
    """Runs the collectors of an agent, each under its deadline. ``round`` is not thread-safe."""

    def __init__(self, collectors: dict[str, Collector], deadline_seconds: float):
        self._fences = [_Fence(name, collector) for name, collector in collectors.items()]
        self._deadline = deadline_seconds
        self._worker: _Worker | None = None

    @property
    def names(self) -> list[str]:
        return [fence.name for fence in self._fences]

    def round(self, until: Callable[[], float] = lambda: math.inf) -> dict[str, Result]:
        """Asks every collector that does not hang, each for at most its deadline.

        ``until`` returns the end of the round, on the monotonic clock. At that moment the running collector counts as
        having exceeded its deadline, and the remaining ones are skipped. ``until`` may return an earlier time while the
        round runs.
        """
        left = [fence for fence in self._fences if not fence.stuck]
        results = {fence.name: Result("hanging") for fence in self._fences}
        results.update((fence.name, Result("skipped")) for fence in left)
        while left:
            worker = self._worker or _Worker()
            done, overran = worker.run(left, self._deadline, until)
            results.update(done)
            self._worker = None if worker.abandoned else worker
            if time.monotonic() >= until():
                break
            left = [fence for fence in left if fence.name not in done and fence is not overran]
        return results

    def close(self) -> None:
        """Ends the worker thread. Threads that hang stay until the process ends."""
        if self._worker:
            self._worker.stop()
            self._worker = None
