"""Looks at random times whether the home stream of an accelerator has no work while the loop computes.

A device that waits for its host is idle inside `compute`, and no boundary shows it. If the stream is empty, the device
has caught up with its host, so it is in the host's phase. The share of looks that find it empty in compute is the share
of time that the device was idle there: a report and the agent count it as `host`.

A look needs Python's lock. It mostly gets it when the training thread begins to launch an operation, and until the
question is answered that thread launches no other one. A question that takes longer than the operation finds an empty
stream too often. One that is quicker finds the operation itself too often. The thread has just woken up, so the first
question takes 40 µs; a second one, soon after it, takes 10. Half of the looks ask once, and half twice. The last
question counts. docs/device-clock.md has figures.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..ledger.causes import PHASE, WORK_PHASES
from ..ledger.layout import WORD_AT
from .lines import Lines

if TYPE_CHECKING:
    from .device_clock import Asker
    from .machine import PhaseMachine

AGAIN_SECONDS = 0.0002
"""How long after the first question the second one comes, so that the host makes up for what the first one cost it."""

PROMPT_SECONDS = 0.001
"""A look that is later than this says nothing about the moment for which it was meant: the training thread may have
held Python's lock in a call that waits for the device, as some of torch's do. It counts as one that found work."""

_PHASE_AT, _LOOKS_AT, _EMPTY_AT = (WORD_AT[name][0] for name in ("phase", "looks", "empty_looks"))
_COMPUTES = frozenset(PHASE[phase] for phase in WORK_PHASES)


class Looks:
    """Counts looks in the ledger. Only the watcher thread calls it."""

    def __init__(self, machine: PhaseMachine, in_backward: Callable[[], bool]):
        self._machine = machine
        self._in_backward = in_backward
        self._lines = Lines(machine)
        self._due = 0.0
        self._failed = False
        self._phase = 0
        self._random = random.Random()  # not the global one: the training may have seeded that

    def expect(self, due_ns: int) -> None:
        """The next look is at this time."""
        self._due = due_ns / 1e9

    def look(self, asker: Asker) -> None:
        late = time.monotonic() - self._due
        empty, prompt = self._ask(asker), _is_prompt(late)
        if empty is not None and self._random.random() < 0.5:
            due = time.monotonic() + AGAIN_SECONDS
            time.sleep(AGAIN_SECONDS)
            late = time.monotonic() - due
            empty, prompt = self._ask(asker), prompt and _is_prompt(late)
        if empty is not None:
            words = self._machine.words
            words[_LOOKS_AT] += 1
            if self._phase in _COMPUTES and prompt:
                if empty:
                    words[_EMPTY_AT] += 1
                elif not self._in_backward():
                    self._lines.look()

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
            self._phase = machine.words[_PHASE_AT]
            return None if machine.capturing or machine.replaying else asker.empty()
        except Exception:  # this kind of device has no such question: the watcher goes on without it
            self._failed = True
            return None
        finally:
            machine.asking.release()


def _is_prompt(late: float) -> bool:
    """Whether the thread got Python's lock in time, or from a training thread that was running Python code: that one
    gives it up after the switch interval."""
    interval = sys.getswitchinterval()
    return late < PROMPT_SECONDS or interval <= late < interval + PROMPT_SECONDS
