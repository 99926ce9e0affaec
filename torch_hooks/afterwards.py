"""What an evaluation does after its last batch: metrics in NumPy or Python, or a wait for a service that judges.

The hooks see where the model has run without gradients for the last time, and the next thing that the loop does. In
between, the function that evaluates returns, which nothing shows. So looks of the watcher tell for how much of that
time it was still on the stack: a function that was there at the end of the evaluation, and not when the training goes
on. A function that also trains does not count.

A function that also saves or logs counts only where it calls an evaluation with a name.

On an accelerator, a part of this time is for operations that were launched before. So only looks that find the device
without work count as such, and the time stays `host`: the device is idle.
"""

from __future__ import annotations

import re
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING

from ..ledger.causes import CAUSE
from ..ledger.layout import WORD_AT
from .below import is_of_torch, tests
from .machine import COMPUTE, EVAL, HOST, Guess

if TYPE_CHECKING:
    from .session import Session

_HOST_AT = WORD_AT["cause_ns"][0] + CAUSE["host"]
_EVAL_IDLE_AT = WORD_AT["eval_idle_ns"][0]
_ALSO = re.compile(r"save|log|checkpoint")
"""A function with such a name does not only evaluate."""
LEAST_NS = 1_000_000
"""Shorter stretches do not count."""
_DEEPEST = 200
_MOST, _MOST_CODE = 16, 256
_MOST_LOOKS = 64

Stack = list[tuple[int, int]]
"""The ``id`` of the code and the instruction of each frame, outermost first."""


def stack_of(frame: FrameType | None) -> Stack:
    """Empty if it is deeper than _DEEPEST."""
    found: Stack = []
    while frame is not None:
        if len(found) >= _DEEPEST:
            return []
        found.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    found.reverse()
    return found


def shared(one: Stack, other: Stack) -> int:
    """How many calls two stacks have in common."""
    depth = 0
    for (code, at), (other_code, other_at) in zip(one, other, strict=False):
        if code != other_code:
            break
        depth += 1
        if at != other_at:
            break
    return depth


def _evaluations(frame: FrameType | None, calls: int) -> list[int]:
    """See `Stretch.named`. ``calls``: how deep the stack of this frame is."""
    found: list[int] = []
    while frame is not None:
        calls, name = calls - 1, frame.f_code.co_name
        if tests(name) and not _ALSO.search(name):
            found.append(calls)
        frame = frame.f_back
    found.reverse()
    return found


class Stretch:
    """What followed the work of one or more evaluations that have ended at the same place."""

    __slots__ = ("_found", "_guesses", "_settled", "idle", "named", "ns", "phase", "stack")

    def __init__(self, stack: Stack, phase: int, named: list[int]):
        self.stack = stack
        """Where they ended."""
        self.phase = phase
        """COMPUTE or HOST, in which it was counted."""
        self.named = named
        """How many calls are outside of each function that is an evaluation by its name, outermost first."""
        self.ns = self.idle = 0
        self._found: dict[int, int] = {}  # how many calls of `stack` looks found -> the ns for which these stand
        self._guesses: list[tuple[int, Guess]] = []
        self._settled = False

    def count(self, frame: FrameType | None, ns: int) -> int:
        """A look of the watcher, which stands for ``ns``; without a frame, it found a device with work, or another
        phase. Returns how many calls of `stack` it found."""
        depth = shared(self.stack, stack_of(frame))
        self._found[depth] = self._found.get(depth, 0) + ns
        return depth

    def look(self, frame: FrameType, ns: int) -> Guess | None:
        """The same, on a CPU rank. What this returns will hold the phase of the look; None: there were many."""
        depth = self.count(frame, ns)
        if len(self._guesses) >= _MOST_LOOKS:
            return None
        guess = Guess()
        self._guesses.append((depth, guess))
        return None if self._settled else guess

    def settle(self, depth: int) -> tuple[int, int]:
        """More than ``depth`` calls of `stack` are those of the evaluation. Returns the ns of all looks, and of those
        that found it."""
        self._settled = True
        for found, guess in list(self._guesses):
            guess.phase = EVAL if found > depth else self.phase
        looked = dict(self._found)
        return sum(looked.values()), sum(ns for found, ns in looked.items() if found > depth)


class Afterwards:
    """Its callers catch its errors."""

    __slots__ = ("_awake", "_begun", "_found", "_loops", "_session", "open", "stretches")

    def __init__(self, session: Session):
        self._session = session
        self.stretches: list[Stretch] = []
        """Those that are to be settled when the training goes on."""
        self.open: Stretch | None = None
        self._begun = self._awake = 0  # the values of `_own` and `_awoken` at its beginning
        self._loops: set[int] = set()  # code that trains, by ``id``
        self._found: dict[int, tuple[int, int]] = {}
        """The ``id`` of a function's code -> ns of looks after its evaluations, and of those that found it."""

    def begins(self) -> None:
        """The work of an evaluation has ended. Call it after the phase has changed."""
        machine, stretches = self._session.machine, self.stretches
        if machine.phase not in (COMPUTE, HOST) or len(stretches) >= _MOST:
            return
        frame = sys._getframe(1)
        if not (stack := stack_of(frame)):
            return
        last = stretches[-1] if stretches else None
        if last is None or (last.stack, last.phase) != (stack, machine.phase):
            stretches.append(Stretch(stack, machine.phase, _evaluations(frame, len(stack))))
        self.goes_on()

    def goes_on(self) -> None:
        """What has interrupted the last stretch has ended."""
        machine = self._session.machine
        last = self.stretches[-1]
        if machine.phase == last.phase:
            self._begun, self._awake = self._own(last.phase), self._awoken()
            machine.after = self.open = last

    def pauses(self) -> None:
        """The loop does something that a hook sees."""
        last, self.open = self.open, None
        self._session.machine.after = None
        if last is not None and (ns := self._own(last.phase) - self._begun) >= LEAST_NS:
            last.ns += ns
            last.idle += max(0, ns - (self._awoken() - self._awake))

    def settle(self) -> None:
        """The training goes on, in a function that calls this frame."""
        if self.open is not None:
            self.pauses()
        stretches, self.stretches = self.stretches, []
        frame: FrameType | None = sys._getframe(1)
        now = stack_of(frame)
        while frame is not None and len(self._loops) < _MOST_CODE:
            if not is_of_torch(frame):
                self._loops.add(id(frame.f_code))
            frame = frame.f_back
        for one in stretches:
            self._settle(one, now)

    def _settle(self, one: Stretch, now: Stack) -> None:
        machine, writer = self._session.machine, self._session.writer
        trains = [depth for depth, (code, _) in enumerate(one.stack, 1) if code in self._loops]
        depth = max(0, shared(one.stack, now), *trains[-1:])
        depth = next((named for named in one.named if named >= depth), depth)
        looked, inside = one.settle(depth)
        if depth >= len(one.stack) or writer is None:
            return
        code = one.stack[depth][0]
        before = self._found.get(code, (0, 0))
        looked, inside = before[0] + looked, before[1] + inside
        if code in self._found or len(self._found) < _MOST_CODE:
            self._found[code] = looked, inside
        if not inside:
            return
        ns, idle = one.ns * inside // looked, one.idle * inside // looked
        if machine.device is not None:
            writer.words[_EVAL_IDLE_AT] += ns
            return
        machine.reclassify(one.phase, EVAL, ns, idle)
        if one.phase == COMPUTE:
            self._session.loop.evaluations.found += ns

    def _own(self, phase: int) -> int:
        """ns of ``phase`` so far, for differences."""
        machine, writer = self._session.machine, self._session.writer
        if writer is None:
            return 0
        if machine.device is not None:  # which lags behind the host
            return time.monotonic_ns()
        now = time.monotonic_ns() - machine.since if machine.phase == phase else 0
        return now + (writer.words[_HOST_AT] if phase == HOST else machine.worked())

    def _awoken(self) -> int:
        """ns in which the training thread was not idle outside of brackets, for differences."""
        task = self._session.task
        return 0 if task is None else task.queue() + time.thread_time_ns() - task.booked_ns
