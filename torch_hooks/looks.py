"""Looks at random times whether the home stream of an accelerator has no work while the loop computes.

A device that waits for its host is idle inside `compute`, and no boundary shows it. If the stream is empty, the device
has caught up with its host, so it is in the host's phase. The share of looks that find it empty in compute is the share
of time that the device was idle there: a report and the agent count it as `host`.

A look that has waited for Python's lock says little about the moment for which it was meant. The training thread may
have held it in a call that waits for the device, as some of torch's do. If it is later than Python code is let to hold
the lock, there was a call: if the line may be one of torch's, it counts as a look that found work, and otherwise with
its answer. A training thread that was running Python code gives the lock up after the switch interval, so a look that
is late by that counts. So does one that is less late and finds no code that may wait in this way. Others may have been
due in either, and do not count. What is due in the last interval of Python code is less late, too. As many of these
count as there are looks that found an idle device for a whole interval. If another Python thread computes most of the
time, it is mostly that one which held the lock, so the answer counts.

A look needs Python's lock. It mostly gets it when the training thread begins to launch an operation, and until the
question is answered that thread launches no other one. A question that takes longer than the operation finds an empty
stream too often. One that is quicker finds the operation itself too often. The thread has just woken up, so the first
question takes 40 µs; a second one, soon after it, takes 10. Half of the looks ask once, and half twice. The last
question counts. A look that is late asks once: a second question would find what the training thread has launched since
it gave the lock up. docs/device-clock.md has figures.

To find out what the training thread does costs five times as much as the question. So most looks are brief: they only
ask. What the next full one finds there stands for them, too.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..ledger.causes import PHASE, PHASE_CAUSE, WORK_CAUSES, WORK_PHASES
from ..ledger.layout import WORD_AT
from .frames import NOWHERE
from .late import PROMPT, Delay, Lateness
from .lines import Lines

if TYPE_CHECKING:
    from .device_clock import Asker
    from .frames import Call, Frames, Look
    from .machine import PhaseMachine

AGAIN_NS = 200_000
"""How long after the first question the second one comes, so that the host makes up for what the first one cost it."""

_MOST_OPEN = 1024
"""In a longer interval, as in a hang, looks are counted before it ends."""

_FIRST_NS, _LONGEST_NS = 50_000_000, 4_000_000_000
"""For how long the first look stands, and the longest time for which one does."""

_PHASE_AT, _SINCE_AT, _LOOKS_AT, _EMPTY_AT, _HOST_EMPTY_AT = (
    WORD_AT[name][0] for name in ("phase", "phase_since_ns", "looks", "empty_looks", "empty_host_looks")
)
_LOOKED_NS_AT, _SQUARE_AT, _EMPTY_NS_AT, _HOST_EMPTY_NS_AT = (
    WORD_AT[name][0] for name in ("looked_ns", "looked_square", "empty_ns", "empty_host_ns")
)
_BY_AT = {PHASE[phase]: WORD_AT["empty_by_ns"][0] + WORK_CAUSES.index(PHASE_CAUSE[phase]) for phase in WORK_PHASES}
_RECOMPUTE_AT = WORD_AT["empty_by_ns"][0] + WORK_CAUSES.index("recompute")
_COMPUTE, _HOST = PHASE["compute"], PHASE["host"]
_COMPUTES = frozenset(PHASE[phase] for phase in WORK_PHASES)


class _Asked(NamedTuple):
    since: int
    """When the interval began in which the look was."""
    phase: int
    empty: bool
    delay: Delay
    stack: Look | None
    ns: int
    """For how long it stands."""
    brief: bool = False


class Looks:
    """Counts looks in the ledger. Only the watcher thread calls it."""

    def __init__(self, machine: PhaseMachine, in_backward: Callable[[], bool], frames: Frames | None = None):
        """``frames``: told when the device has no work."""
        self._machine = machine
        self._in_backward = in_backward
        self._frames = frames
        self._python = 0  # how many more looks at Python code found an idle device than a busy one
        self._owed: deque[int] = deque(maxlen=_MOST_OPEN)
        """For how long looks stand that were late, do not count, and may have been due in such code."""
        self._begun = False
        self._lines = Lines(machine)
        self._late = Lateness()
        self.expect = self._late.expect
        self._failed = False
        self._phase = self._since = self._before = 0  # of the last question
        self._unnamed = dict.fromkeys((_HOST, *_COMPUTES), 0)
        """By phase: for how many ns brief looks stand that found no work since the last full one that did."""
        self._open: list[_Asked] = []  # in the interval that is open
        self._random = random.Random()  # not the global one: the training may have seeded that

    def look(self, asker: Asker, brief: bool = False) -> None:
        now = time.monotonic_ns()
        # Before the question, which gives the lock up: the training thread goes on then.
        call = self._frames.call() if self._frames is not None and self._late.is_long(now) else None
        empty = self._ask(asker)
        delay = self._late.how(now)
        if empty is not None and self._left_host(delay):
            self._count_before(empty, now, brief)
            return
        if empty is not None and not (delay.held or delay.forced) and self._random.random() < 0.5:
            self._late.soon(time.monotonic_ns() + AGAIN_NS)
            time.sleep(AGAIN_NS / 1e9)
            now = time.monotonic_ns()
            empty = self._ask(asker)
            delay = self._late.how(now)
        if empty is not None:
            self._take(empty, delay, call if delay.long else None, brief)

    def _take(self, empty: bool, delay: Delay, call: Call | None, brief: bool) -> None:
        phase, frames, stack, held = self._phase, self._frames, None, delay.held
        now = time.monotonic_ns()
        python = before = False
        if held and frames is not None and (phase == _HOST or phase in _COMPUTES):
            if now < frames.crowded_until_ns:
                delay, held = PROMPT, False
            elif (call is not None or not delay.long) and frames.kept_the_lock(call):
                python, before = True, not delay.long
                delay, held = PROMPT, False
        stands = self._late.stands_for(now)
        ns, self._begun = min(stands, _LONGEST_NS) if self._begun else _FIRST_NS, True
        self.settle()
        if frames is not None:
            frames.device_answers = True
            if (after := self._machine.after) is not None and (delay.long or not held) and not brief:
                idle = empty and not held and phase in (_COMPUTE, _HOST)
                after.count(frames.stack() if idle else None, ns)
            if empty and not (held or brief) and (phase == _HOST or phase in _COMPUTES):
                known = call.look if call is not None and python else None
                stack = known or frames.idle_look(delay.forced or python, before, phase == _HOST)
        if not (empty or held) and phase in _COMPUTES and not self._in_backward():
            self._lines.look()
        self._open.append(_Asked(self._since, phase, empty, delay, stack, ns, brief))

    def _left_host(self, delay: Delay) -> bool:
        """Whether the look was due in `host`, and the loop has left that while it kept Python's lock."""
        kept = delay.brief or (delay.held and not delay.long)
        return kept and self._before == _HOST and self._late.due < self._since

    def _count_before(self, empty: bool, now: int, brief: bool) -> None:
        """Counts a look that was due in `host`. Nothing tells where."""
        ns, self._begun = min(self._late.stands_for(now), _LONGEST_NS) if self._begun else _FIRST_NS, True
        self.settle()
        self._counts(ns)
        self._count(_Asked(0, _HOST, empty, PROMPT, NOWHERE, ns, brief))

    def _counts(self, ns: int) -> None:
        words = self._machine.words
        words[_LOOKS_AT] += 1
        words[_LOOKED_NS_AT] += ns
        words[_SQUARE_AT] += (ns // 1_000_000) ** 2

    def settle(self) -> None:
        """Counts the looks in intervals that have ended. Only then it is known whether they were waits for a batch."""
        asked = self._open  # all in the same interval
        if asked and (asked[0].since != self._machine.words[_SINCE_AT] or len(asked) >= _MOST_OPEN):
            self._count_open()

    def close(self) -> None:
        """Counts the looks in the last interval, too, if it did not begin at the end of a step: what comes after the
        last step is outside the loop. The watcher has ended."""
        if self._open and self._open[0].since == self._machine.stepped_ns:
            self._open = []
        self._count_open()
        for phase, ns in self._unnamed.items():
            if ns and self._frames is not None:
                self._frames.device_idle(phase, None, ns)

    def _count_open(self) -> None:
        asked, self._open = self._open, []
        if not asked:
            return
        turned = dict(self._machine.turned.copy())
        phase = turned.get(asked[0].since)
        for one in asked:
            # With its answer: an open look that stands for seconds would seem to have found work.
            if one.phase == _HOST or not one.delay.held or one.delay.long:
                self._counts(one.ns)
            self._count(one if phase is None else one._replace(phase=phase))

    def _count(self, asked: _Asked) -> None:
        if asked.phase == _HOST:
            if asked.empty or asked.delay.held:
                self._machine.words[_HOST_EMPTY_AT] += 1
                self._machine.words[_HOST_EMPTY_NS_AT] += asked.ns
                self._name(asked)
        elif asked.phase not in _COMPUTES:
            return
        elif asked.delay.held:
            if not asked.delay.long:
                self._owed.append(asked.ns)
        elif asked.empty:
            self._is_empty(asked)
        if asked.delay.forced and not asked.delay.held:
            self._python += 1 if asked.empty else -1
        while self._owed and self._python > 0 and asked.phase != _HOST:
            ns, self._python = self._owed.popleft(), self._python - 1
            self._counts(ns)
            self._is_empty(asked._replace(stack=None, ns=ns))

    def _is_empty(self, asked: _Asked) -> None:
        self._machine.words[_EMPTY_AT] += 1
        self._machine.words[_EMPTY_NS_AT] += asked.ns
        again = asked.phase == _COMPUTE and self._machine.books.repeating
        self._machine.words[_RECOMPUTE_AT if again else _BY_AT[asked.phase]] += asked.ns
        self._name(asked)

    def _name(self, asked: _Asked) -> None:
        """The device had no work."""
        if self._frames is None:
            return
        if asked.brief and asked.stack is None:
            self._unnamed[asked.phase] += asked.ns
            return
        ns = asked.ns
        if not asked.brief:
            ns, self._unnamed[asked.phase] = ns + self._unnamed[asked.phase], 0
        self._frames.device_idle(asked.phase, asked.stack, ns)

    def _ask(self, asker: Asker) -> bool | None:
        """Whether the home stream is empty; None if it may not be asked, or if a graph is just being launched: the
        answer would come when it runs. Nothing that can wait is done before the question."""
        machine = self._machine
        device = machine.device
        if self._failed or device is None or device.dead or device.closed or not machine.stepping:
            return None
        if not machine.asking.acquire(False):
            return None  # a capture begins
        try:
            self._phase, self._since = machine.words[_PHASE_AT], machine.words[_SINCE_AT]
            self._before = machine.before
            return None if machine.capturing or machine.replaying else asker.empty()
        except Exception:  # this kind of device has no such question: the watcher goes on without it
            self._failed = True
            return None
        finally:
            machine.asking.release()
