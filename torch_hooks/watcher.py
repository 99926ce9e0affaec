"""The thread that looks at a rank now and then: one thread, a table of probes, and one budget for all of them.

A probe reads something that the training thread cannot see, or should not spend time on, and writes it to words of the
ledger that nobody else writes. A probe that fails, or that costs too much, is switched off alone.

To wake the thread costs as much as a look: some 70 µs with cold caches. So all probes run together, in rounds. There is
one round in each period, at a random time: rounds at fixed distances could meet the rhythm of the loop. The period
follows the cost, so that the thread takes a fixed part of a core, with everything that Python does to wake it.

In the thread `whyidle-watcher`, in this order:

- `frames`: the training thread's Python frame and its state in /proc.
- `storage`: at which mount those are blocked that read or write for it.
- `links`: the links that carry transfers, and those beside them. It may ask for separate runs.
- `census`, every 5 s: how many threads and open files the process has.
- `cpus`, every 2 s: which CPUs the rank and its data workers may use, how many of them, and how much they use.
- `memory`, in most rounds, or every 4 s while memory is far from its limit: what the control groups and the node use.
- `background`: what works beside the training. While something does, it also runs between rounds.
- `flush`: the ledger's memory, to its file.

The thread `whyidle-device` asks an accelerator. If that hangs, a question may never be answered, and what the ledger
says about a hang must reach its file all the same. The budget is divided then.

- `looks`: whether the accelerator has work. In most rounds, which are brief, it only asks that, for a fifth.
- `stuck`: which boundary it has not passed.
- `utilisation`: how busy the devices are, if the process uses several.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import NamedTuple

from . import background
from .moments import Moments
from .notices import debug
from .suspensions import Suspensions

STOP_SECONDS = 0.1
"""How long `stop` waits for the thread, which may be in a probe."""
TOO_DEAR_NS = 5_000_000
PATIENCE = 3
"""A probe is switched off when it has cost more than TOO_DEAR_NS this many times in a row."""
_AT_FIRST_NS = 300_000
"""What a round is taken to cost before one has been counted."""
_FIRST_ROUNDS = 2
"""How many rounds are not counted: most of their time is imports, which take 10 ms together, or 25 where a machine is
busy. A credit of that size would be gone before the first useful look."""
_SMOOTH = 8
"""A round is taken to cost the median of this many: some take ten times as long, if what they find is new. A wake is
taken to cost a mean of about as many."""
_EARLY_SECONDS = 0.5
"""The period while there is little to see. At `Budget.least`, a minute of imports would use up the credit."""
_CREDIT_NS = 8_000_000_000
"""Pauses grow with the time, so that the credit lasts at least about this long after the first step. So what looks find
stands for more than the first steps, also where a look costs much."""
_BEAT_NS = 800_000_000
"""Vital probes run this often, also while rounds are rare, if the thread wakes in between."""
_STARVED = 1.5
"""A round with all probes comes at the latest after this many of the longest period, or when the share alone has paid
for it. To wake for vital probes may cost more than the share, so that the others would never have their turn."""
_WAKE_AT_FIRST_NS, _WAKES = 50_000, 0.25
"""To wake only for `suspensions` may take this part of the share."""


class Budget(NamedTuple):
    """What one thread may take."""

    share: float
    """Of a core."""
    credit_ns: int
    """CPU time beyond that, once: the first looks read more, and a short run needs looks, too."""
    least: float
    """The shortest period, in seconds."""
    most: float
    """The longest one."""
    quickest: float = 0.25
    """The shortest one with a larger share."""
    briefs: int = 0
    """How many brief rounds are between two that run all probes. The shortest periods above are those of one round, and
    the longest one is that of all these together."""


SHARE = 0.001
"""Of a core: what all threads together may take in runs of 300 s and longer. A short run has more: the first rounds
import, and it takes ten looks to name a mount or a link. WHYIDLE_WATCHER_SHARE changes it."""
ALONE = Budget(0.00088, 20_000_000, 0.25, 4.0)
BESIDE, DEVICE = Budget(0.0005, 12_000_000, 0.25, 4.0), Budget(0.00034, 16_000_000, 0.1, 1.0, 0.025, 7)
"""Of two threads."""


def scaled(budget: Budget) -> Budget:
    """The budget for the share of a core that the user has set."""
    try:
        factor = float(os.environ.get("WHYIDLE_WATCHER_SHARE", SHARE)) / SHARE
    except ValueError:
        factor = 1.0
    if not 0.1 <= factor <= 100:
        factor = 1.0
    least = max(budget.quickest, budget.least / max(1.0, factor))
    return budget._replace(share=factor * budget.share, credit_ns=round(factor * budget.credit_ns), least=least)


@dataclass(slots=True)
class Probe:
    """One row of the table."""

    name: str
    run: Callable[[], object]
    rest: float = 0.0
    """The least seconds between two runs."""
    expect: Callable[[int, int], object] | None = None
    """Called with the time (CLOCK_MONOTONIC ns) of the next round, as soon as that is known, and the ns of the period
    for which it stands."""
    soon: Callable[[], float] | None = None
    """Returns the seconds after which the probe must run again, without the others. 0: in the next round."""
    waits_its_turn: bool = False
    """Whether `soon` does not count while the budget is spent: the other probes have their turn first."""
    vital: bool = False
    """Whether it runs in each round, whatever it costs, and after a failure."""
    urgent: Callable[[], bool] | None = None
    """Whether it is to run whenever the thread wakes, for a vital probe."""
    brief: Callable[[], object] | None = None
    """What it does in a brief round. None: nothing."""
    after_ns: int = 0
    ran_ns: int = 0
    dear: int = 0  # how often in a row it has cost too much


class Watcher:
    """Runs probes in one thread until it is stopped or the process ends.

    It is stopped while the process forks. So a child never gets a lock that this thread held, and Python does not warn
    users about a thread that they did not start.

    ``off`` is called with the name of a probe that is switched off, and the reason. ``budget`` may be changed.
    ``early``: whether there is little to see yet, so that the credit is kept for the first steps. Only vital probes are
    in most rounds then.
    ``suspensions`` finds in the sleeps of the thread when the process was not allowed to run.
    """

    def __init__(
        self,
        probes: list[Probe],
        name: str,
        off: Callable[[str, Exception], object] = lambda *_: None,
        budget: Budget | None = None,
        suspensions: Suspensions | None = None,
        early: Callable[[], bool] = lambda: False,
    ):
        self.probes = probes
        self.budget = budget or scaled(ALONE)
        self._name = name
        self._off = off
        self._suspensions = suspensions
        self._early = early
        self._is_vital = any(probe.vital for probe in probes)
        self._thread: threading.Thread | None = None
        self._begun_ns = time.monotonic_ns()
        self._spent_ns = 0  # the CPU time of this thread, and of those before it, without the first rounds
        self._cost_ns, self._rounds = _AT_FIRST_NS, 0
        self._costs: deque[int] = deque(maxlen=_SMOOTH)
        self._turn = 0  # the number of the next round; 0: it is not brief
        self._seconds = 0.0  # the period of the last round
        self._whole_ns = 0  # when the next round with all probes is due, if it is early
        self._ran_ns = 0  # when the last round with all probes was due
        self._due_ns = 0  # when the last round was due
        self._wake_ns = _WAKE_AT_FIRST_NS
        self._seen_ns = 0  # when there was something to see for the first time
        self._moments = Moments()
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
            if self._suspensions is not None:
                self._suspensions.stops()
            self._running.release()
            if wait and thread is not threading.current_thread():
                thread.join(wait)

    def _run(self, running: threading.Lock) -> None:
        before = self._spent_ns
        while self.probes:
            due, period = self._next(time.monotonic_ns())
            brief = self._turn > 0
            for probe in self.probes:
                if probe.expect is not None:
                    probe.expect(due, period)
            while (soon := self._soonest(before)) is not None and time.monotonic_ns() + 1e9 * soon[0] < due:
                if self._sleep(running, time.monotonic_ns() + round(1e9 * soon[0])):
                    return
                self._run_one(soon[1])
            if self._sleep(running, due):
                return
            self._turn = (self._turn + 1) % (1 + self.budget.briefs)
            if brief:
                for probe in list(self.probes):
                    if probe.brief is not None and due >= probe.after_ns:
                        self._run_one(probe, probe.brief)
                continue
            whole = self._round(due)
            spent = before + time.thread_time_ns()
            if whole:
                self._rounds += 1
                if self._rounds > _FIRST_ROUNDS:
                    self._costs.append(spent - self._spent_ns)
                    self._cost_ns = sorted(self._costs)[len(self._costs) // 2]
                else:
                    before, spent = before - (spent - self._spent_ns), self._spent_ns
            self._spent_ns = spent

    def _next(self, now: int) -> tuple[int, int]:
        """When the next round is due (CLOCK_MONOTONIC ns), and the ns of its period: a random time that does not depend
        on when the last round ran. A call of the loop that keeps Python's lock delays rounds to its end, and a pause
        after that would mostly end in the next such call. Periods that have passed meanwhile are left out."""
        if self._due_ns > now:  # the thread has been stopped for a fork
            return self._due_ns, 0
        if not self._turn:
            self._seconds = self._period(now)
        period = round(1e9 * (seconds := self._seconds))
        due = (self._due_ns or now) + round(1e9 * self._moments.pause(seconds))
        if due <= now:
            due += period * ((now - due) // period + 1)
        self._due_ns = due
        return due, period

    def _sleep(self, running: threading.Lock, until: int) -> bool:
        """Sleeps until then (CLOCK_MONOTONIC, ns). Returns whether the thread must end."""
        suspensions = self._suspensions
        while (left := until - (now := time.monotonic_ns())) > 0 and suspensions is not None:
            begun = time.thread_time_ns()
            pause = min(left, suspensions.pulse(now, round(self._wake_ns / (_WAKES * self.budget.share))))
            suspensions.sleeps(now + pause)
            if running.acquire(timeout=pause / 1e9):
                return True
            suspensions.wakes()
            more = time.thread_time_ns() - begun - self._wake_ns
            most = self._wake_ns // _SMOOTH  # one wake in fifty takes ten times as long, and is not what a wake costs
            self._wake_ns += max(-most, min(more // _SMOOTH, most))
            if time.monotonic_ns() < until:
                self._beat()
        return running.acquire(timeout=max(0.0, left / 1e9))

    def _beat(self) -> None:
        """Runs vital probes that have not run for long, or are urgent: the thread is awake, so they cost little now."""
        now = time.monotonic_ns()
        for probe in self.probes:
            if probe.vital and (now - probe.ran_ns >= _BEAT_NS or (probe.urgent is not None and probe.urgent())):
                self._run_one(probe)

    def _period(self, now: int) -> float:
        """Seconds until the budget allows another round."""
        share, credit, least, most, _, briefs = self.budget
        if self._early():
            return min(max(_EARLY_SECONDS, least), most)
        self._seen_ns = self._seen_ns or now
        passed = max(1, now - self._seen_ns)
        paid = max(1.0, (credit + share * (now - self._begun_ns) - self._spent_ns) / self._cost_ns)
        pace = passed * max(1.0, log(_CREDIT_NS / passed)) / paid
        pace = min(pace, self._cost_ns / share) / 1e9
        free_ns = self._begun_ns + (self._spent_ns + self._cost_ns - credit) / share
        pause = max((free_ns - now) / 1e9, pace)
        # To wake the thread for no probe would take the whole share, once a second.
        pause = min(pause, most if self._is_vital else max(most, self._cost_ns / share / 1e9))
        return max(least, pause / (1 + briefs))

    def _round(self, due: int) -> bool:
        """Returns whether it ran all probes."""
        budget = self.budget
        starved = due - self._ran_ns >= max(_STARVED * 1e9 * budget.most, self._cost_ns / budget.share)
        short = self._is_vital and not starved and self._has_spent(self._spent_ns - self._cost_ns, due)
        if self._early():
            short = short or due < self._whole_ns
            self._whole_ns = self._whole_ns if short else due + round(1e9 * budget.most)
        if not short:
            self._ran_ns = due
        for probe in list(self.probes):
            if due >= probe.after_ns and (probe.vital or not short):
                self._run_one(probe)
        return not short

    def _has_spent(self, spent_ns: int, until: int) -> bool:
        """Whether this is more than the budget allows until then (CLOCK_MONOTONIC, ns)."""
        return spent_ns - self.budget.credit_ns > self.budget.share * (until - self._begun_ns)

    def _soonest(self, before: int) -> tuple[float, Probe] | None:
        spent = self._has_spent(before + time.thread_time_ns(), time.monotonic_ns())
        asked = [
            (probe.soon(), probe)
            for probe in self.probes
            if probe.soon is not None and not (spent and probe.waits_its_turn)
        ]
        return min((one for one in asked if one[0]), default=None, key=lambda one: one[0])

    def _run_one(self, probe: Probe, run: Callable[[], object] | None = None) -> None:
        begun, probe.ran_ns = time.thread_time_ns(), time.monotonic_ns()
        try:
            (run or probe.run)()
        except Exception as error:  # what it looks at is not there, or cannot be asked
            if not probe.vital:
                self._switch_off(probe, error)
            return
        if probe.rest:
            probe.after_ns = time.monotonic_ns() + round(1e9 * probe.rest)
        if not probe.vital:
            cost = time.thread_time_ns() - begun
            probe.dear = probe.dear + 1 if cost > TOO_DEAR_NS else 0
            if probe.dear >= PATIENCE:
                self._switch_off(probe, RuntimeError(f"it takes {cost / 1e6:.1f} ms of CPU time a run"))

    def _switch_off(self, probe: Probe, error: Exception) -> None:
        self.probes.remove(probe)
        if debug():
            traceback.print_exception(error)
        self._off(probe.name, error)
