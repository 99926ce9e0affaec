"""Collectors behind fences: each under its own deadline, and one that hangs costs itself only.

All collectors run one after the other in one worker thread, which costs a scrape a single change of threads. When one
overruns its deadline, that thread is left to it and a new one goes on with the rest. While it hangs it is not started
again, so that there is never more than one stuck thread per collector; when it returns after all, its thread ends, what
it read is thrown away, and the next round starts it again.
"""

from __future__ import annotations

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
        self._abandoned = False
        self._running: tuple[_Fence, float] | None = None
        self._results: dict[str, Result] = {}
        threading.Thread(target=self._work, name="collectors", daemon=True).start()

    def run(self, fences: list[_Fence], deadline_seconds: float) -> tuple[dict[str, Result], _Fence | None]:
        """Runs the fences -> what those gave that were done, and the one that this worker is now abandoned to."""
        self._results = {}  # _running is None: it was reset after the last fence of the round before
        self._inbox.put(fences)
        pause = deadline_seconds
        while True:
            try:
                self._outbox.get(timeout=pause)
                return self._results, None
            except Empty:
                pass
            with self._lock:
                if self._running is None:  # between two of them, or not begun for want of a CPU
                    pause = deadline_seconds
                    continue
                fence, since = self._running
                pause = since + deadline_seconds - time.monotonic()
                if pause <= 0:
                    self._abandoned = True
                    fence.stuck = True
                    return self._results, fence

    def stop(self) -> None:
        self._inbox.put(None)

    def _work(self) -> None:
        while (fences := self._inbox.get()) is not None:
            for fence in fences:
                self._running = (fence, time.monotonic())
                result = fence.run()
                with self._lock:
                    self._running = None
                    if self._abandoned:
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

    def round(self, give_up: Callable[[], bool] = lambda: False) -> dict[str, Result]:
        """Asks every collector once. Takes at most the deadline for each that does not hang yet.

        ``give_up`` is asked after each overrun deadline: when it says so, the collectors that are left are not started.
        """
        results: dict[str, Result] = {fence.name: Result("hanging") for fence in self._fences}
        left = [fence for fence in self._fences if not fence.stuck]
        while left:
            worker = self._worker or _Worker()
            done, overran = worker.run(left, self._deadline)
            results.update(done)
            self._worker = None if overran else worker
            if overran:
                results[overran.name] = Result("deadline", seconds=self._deadline)
                if give_up():
                    break
            left = [fence for fence in left if fence.name not in done and fence is not overran]
        for fence in left:
            results[fence.name] = Result("skipped")
        return results

    def close(self) -> None:
        """Ends the worker thread; one that hangs is left to the end of the process."""
        if self._worker:
            self._worker.stop()
            self._worker = None
