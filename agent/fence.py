"""Collectors behind fences: each under its own deadline, and one that hangs costs itself only.

All collectors run one after the other in one worker thread, which costs a scrape a single change of threads. When one
overruns its deadline, that thread is left to it and a new one goes on with the rest. While it hangs it is not started
again, so that there is never more than one stuck thread per collector; when it returns after all, its thread ends, what
it read is thrown away, and the next round starts it again. The round as a whole has a deadline too, for collectors that
are all just slow enough.
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
"""`hanging`: not started, since an earlier round's run has not come back. `skipped`: the round had no time left."""


@dataclass(slots=True)
class Result:
    """What became of one collector in one round."""

    state: State
    reading: Reading | None = None  # of a collector that is up
    seconds: float = 0.0
    detail: str = ""  # for absent and fault: what was looked for, or the exception


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
        except Exception as error:  # the fence: a fault of one collector must not cost the others
            return Result("fault", seconds=time.monotonic() - start, detail=f"{type(error).__name__}: {error}")
        return Result("up", reading, time.monotonic() - start)


class _Worker:
    """A thread that runs the fences it is handed, until it is abandoned to one that overran its deadline."""

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
        """Runs the fences -> what those gave that were done, and the one that this worker is now abandoned to.

        ``until`` is asked for the end of the round, on the monotonic clock. When that has come, the worker is abandoned
        whether there is such a fence or not.
        """
        self._results = {}  # nothing runs: whatever did has ended, or this worker would be abandoned
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
                fence, since = self._running or (None, now)  # None: between two, or not begun for want of a CPU
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
    """The collectors of an agent. ``round`` is for one thread at a time."""

    def __init__(self, collectors: dict[str, Collector], deadline_seconds: float):
        self._fences = [_Fence(name, collector) for name, collector in collectors.items()]
        self._deadline = deadline_seconds
        self._worker: _Worker | None = None

    @property
    def names(self) -> list[str]:
        return [fence.name for fence in self._fences]

    def round(self, until: Callable[[], float] = lambda: math.inf) -> dict[str, Result]:
        """Asks every collector once, each that does not hang yet for its deadline at most.

        When ``until`` has come, on the monotonic clock, the collector that is being asked has overrun its deadline,
        whatever that was, and those that are left are skipped. It may come to be sooner in the course of the round.
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
        """Ends the worker thread; one that hangs is left to the end of the process."""
        if self._worker:
            self._worker.stop()
            self._worker = None
