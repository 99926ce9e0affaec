"""When the process was not allowed to run: stopped by a signal or a debugger, frozen, paused with its container or VM.

A thread says until when it sleeps. If it wakes much later, it was not run, and neither was the training. Three things
look alike and are not suspensions. If the thread had to queue for a CPU, the kernel has counted that (schedstat). If it
waited for Python's lock, it has asked for it again and again (`take_gil` in CPython's ceval_gil.c waits for a switch
interval at a time), and the kernel has counted these sleeps. If the training has passed a boundary, it ran.

It is not known when in its last sleep the thread was stopped. If the training has passed a boundary in that sleep, it
was about as long after it as the last boundary usually is ago when the thread looks. If not, phases are long. Then the
sleeps are short, as far as the thread can pay for them, so it is known to about half of PULSE_NS, and on a busy machine
to half a second.
CLOCK_MONOTONIC does not count the time in which the whole machine is suspended, so that is in no sum.
"""

from __future__ import annotations

import os
import re
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from .proc import read_file
from .tasks import TaskClock

PULSE_NS = 200_000_000
"""The longest sleep of the thread while phases are long, if its budget allows that. Each wake costs 30 to 160 µs."""
LONG_PULSE_NS = 500_000_000
"""The longest one while phases are short."""
SHORT_NS = PULSE_NS // 2
"""Phases are short if the thread has found none that was open for longer, for a while."""
_FOR_A_WHILE_NS = 10_000_000_000
_SMOOTH = 4
"""About how many looks the mean age of the last boundary is taken over."""
LEAST_NS = 300_000_000
"""Shorter suspensions are not told from the delays of a busy machine."""
_QUEUE_AGAIN_NS = 2_000_000_000
_LOCK_SECONDS = 0.05
"""How long the training waits for the thread that looks at the same moment, after a stop of at least LEAST_NS."""
_SLEEPS = 4
"""How often a thread that is stopped in its sleep gives up its CPU, without any wait for Python's lock."""
_LONGEST_SWITCH = 0.02
"""With a longer switch interval, waits for Python's lock cannot be told."""
_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\t(\d+)", re.MULTILINE)


class _Sleep(NamedTuple):
    at: int
    until: int
    queue: int
    """ns that the thread had queued for a CPU before, up to _QUEUE_AGAIN_NS ago."""
    switches: int
    """How often it had given up its CPU."""


class Suspensions:
    """Finds suspensions. `sleeps` and `wakes` are for the thread that sleeps, all others for any thread. Times are ns
    of CLOCK_MONOTONIC. ``since``: returns when the training has passed its last boundary."""

    __slots__ = ("_age", "_lock", "_long_until", "_queue", "_queue_ns", "_since", "_sleep", "_task", "_tid", "found")

    def __init__(self, since: Callable[[], int]):
        self._since = since
        self._tid = 0
        self._task: TaskClock | None = None
        self._sleep: _Sleep | None = None
        self._queue: int | None = None  # what the thread had queued for a CPU at `_queue_ns`
        self._queue_ns = 0
        self._age = 0  # how long ago the last boundary is, at a moment like those of late
        self._long_until = 0  # until then, phases count as long
        self._lock = threading.Lock()
        self.found: list[tuple[int, int]] = []
        """Suspensions that nobody has taken yet: (begin, end)."""

    def pulse(self, now: int, least: int) -> int:
        """For how many ns the thread may sleep. ``least``: shorter sleeps cost too much."""
        age = now - self._since()
        self._age += (age - self._age) // _SMOOTH
        if age > SHORT_NS:
            self._long_until = now + _FOR_A_WHILE_NS
        return max(PULSE_NS if now < self._long_until else LONG_PULSE_NS, least)

    def sleeps(self, until_ns: int) -> None:
        """The thread sleeps now."""
        tid = threading.get_native_id()
        if self._task is None or tid != self._tid:
            self._tid, self._task, self._queue_ns = tid, TaskClock(os.getpid(), tid), 0
        now = time.monotonic_ns()
        if now - self._queue_ns > _QUEUE_AGAIN_NS:  # to read it is a fifth of what a wake costs
            self._queue_ns = now
            self._queue = self._task.known_queue()  # without the clock of the process, which adds up all of its threads
        if self._queue is not None:
            switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            self._sleep = _Sleep(now, until_ns, self._queue, switches)

    def wakes(self) -> None:
        self.look(time.monotonic_ns())
        self._sleep = None

    stops = wakes
    """The thread will not sleep any more."""

    def look(self, now: int) -> None:
        """Looks whether the thread should have woken long ago. The training asks before it passes a boundary."""
        sleep = self._sleep
        if sleep is None or now - sleep.until < LEAST_NS:
            return
        since = self._since()  # now: the training goes on while the kernel is asked
        if self._lock.acquire(timeout=_LOCK_SECONDS):
            try:
                if self._sleep is sleep:
                    self._find(sleep, now, since)
                    self._sleep = None
            finally:
                self._lock.release()

    def _find(self, sleep: _Sleep, now: int, since: int) -> None:
        queue = self._task.known_queue() if self._task is not None else None
        switches = _SWITCHES.search(read_file(f"/proc/self/task/{self._tid}/status", 8192))
        interval = sys.getswitchinterval()
        if queue is None or switches is None or interval > _LONGEST_SWITCH:
            return
        for_lock = max(0, int(switches[1]) - sleep.switches - _SLEEPS) * round(1e9 * interval)
        ended = now - (queue - sleep.queue) - for_lock
        if ended - max(since, sleep.until) >= LEAST_NS:
            begun = max(since, sleep.at)
            half = max(0, sleep.until - begun) // 2
            begun += half if since <= sleep.at else min(half, self._age)
            self.found.append((begun, ended))

    def take(self, begin: int, end: int) -> int:
        """For how long an interval of the training was suspended. Call it for each interval in turn."""
        found = self.found
        ns = sum(max(0, min(end, ended) - max(begin, begun)) for begun, ended in found)
        self.found = [one for one in found if one[1] > end]
        return ns
