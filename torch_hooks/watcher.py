"""The thread that looks at a rank now and then: one thread, and a table of probes.

A probe reads something that the training thread cannot see, or should not spend time on, and writes it to words of the
ledger that nobody else writes. A probe that fails, or that costs too much, is switched off alone.

- `flush`, ten times a second: the ledger's memory, to its file.
- `frames`, at most four times a second at random times: the training thread's Python frame and its state in /proc.
- `storage`, at most four times a second at random times: at which mount those are blocked that read or write for it.
- `links`, at most four times a second at random times: the links that carry transfers, and those beside them.
- `census`, every 2 s: how many threads and open files the process has.
- `looks`, ten times a second at random times: whether an accelerator has work.
- `stuck`, every second: which boundary an accelerator has not passed.

The last two ask the device. If it hangs, a question may never be answered, and what the ledger says about a hang must
reach its file all the same. So these two run in a second thread.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from . import background
from .notices import debug

STOP_SECONDS = 0.1
"""How long `stop` waits for the thread, which may be in a probe."""
SHARE = 2000
"""All limited probes together take at most this part of a core: 0.05 %. To wake the thread costs as much again."""
_CREDIT_NS = 20_000_000
"""The CPU time that they may take beyond it once: the first look reads more, and a short run is looked at, too."""
TOO_DEAR_NS = 5_000_000
PATIENCE = 3
"""A probe is switched off when it has cost more than TOO_DEAR_NS this many times in a row."""


@dataclass(slots=True)
class Probe:
    """One row of the table."""

    name: str
    run: Callable[[], object]
    pause: Callable[[], float]
    """Returns the seconds until the next run."""
    vital: bool = False
    """Whether it goes on whatever it costs, and after a failure."""
    limited: bool = True
    """Whether it counts in the budget, and pauses while that is used up. Otherwise its own pauses keep its cost low."""
    due: float = 0.0
    dear: int = 0  # how often in a row it has cost too much


class Watcher:
    """Runs probes in one thread until it is stopped or the process ends.

    It is stopped while the process forks. So a child never gets a lock that this thread held, and Python does not warn
    users about a thread that they did not start.

    ``off`` is called with the name of a probe that is switched off, and the reason.
    """

    def __init__(self, probes: list[Probe], name: str, off: Callable[[str, Exception], object] = lambda *_: None):
        self.probes = probes
        self._name = name
        self._off = off
        self._thread: threading.Thread | None = None
        self._begun = time.monotonic()
        self._spent_ns = 0  # the CPU time of the limited probes
        self.start()

    def start(self) -> None:
        # Until this lock is released, the thread goes on; cheaper than an event. A new one for each thread, so that one
        # that is slow to stop does stop.
        self._running = running = threading.Lock()
        running.acquire()
        self._thread = background.start(lambda: self._run(running), self._name)

    def stop(self, wait: float = STOP_SECONDS) -> None:
        """Stops the thread, and waits at most ``wait`` seconds for it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._running.release()
            if wait and thread is not threading.current_thread():
                thread.join(wait)

    def _run(self, running: threading.Lock) -> None:
        now = time.monotonic()
        for probe in self.probes:
            probe.due = now + probe.pause()
        while self.probes:
            first = min([probe.due for probe in self.probes])
            if running.acquire(timeout=max(0.0, first - time.monotonic())):
                return
            now = time.monotonic()
            for probe in [probe for probe in self.probes if probe.due <= now]:
                self._run_one(probe)

    def _run_one(self, probe: Probe) -> None:
        begun = time.thread_time_ns()
        try:
            probe.run()
        except Exception as error:  # what it looks at is not there, or cannot be asked
            if not probe.vital:
                self._switch_off(probe, error)
                return
        cost = time.thread_time_ns() - begun
        pause = probe.pause()
        if probe.limited and not probe.vital:
            probe.dear = probe.dear + 1 if cost > TOO_DEAR_NS else 0
            if probe.dear >= PATIENCE:
                self._switch_off(probe, RuntimeError(f"it takes {cost / 1e6:.1f} ms of CPU time a run"))
                return
            self._spent_ns += cost
            free = self._begun + (self._spent_ns - _CREDIT_NS) * SHARE / 1e9
            probe.due = max(probe.due, free - pause)
        probe.due = max(time.monotonic(), probe.due) + pause

    def _switch_off(self, probe: Probe, error: Exception) -> None:
        self.probes.remove(probe)
        if debug():
            traceback.print_exception(error)
        self._off(probe.name, error)
