"""The phase machine: one open phase at any time, so that every nanosecond is in exactly one place.

    old = machine.enter(PHASE["data"])
    ...
    machine.leave(old)

Phases nest and the innermost wins. On a CPU rank an interval is charged when it ends; on a CUDA rank it is handed to the
device clock, which charges it when the GPU has passed its end.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from .books import SEQUENCE, Books, Parts
from .causes import CAUSE, PHASE
from .layout import WORD_AT

if TYPE_CHECKING:
    from .device_clock import DeviceClock

STARTUP, COMPUTE, EVAL, HOST, COLLECTIVE = (PHASE[p] for p in ("startup", "compute", "eval", "host", "collective"))
_PHASE_AT = WORD_AT["phase"][0]
_SINCE_AT = WORD_AT["phase_since_ns"][0]
_ACCOUNTED_AT = WORD_AT["accounted_ns"][0]
_COLLECTIVES_AT = WORD_AT["collectives"][0]
_UNATTRIBUTED = CAUSE["unattributed"]

NOT_ENTERED = -1
"""What ``enter`` returns when nothing was entered; ``leave(NOT_ENTERED)`` does nothing."""

_now = time.monotonic_ns
_thread = threading.get_ident


class PhaseMachine:
    """Keeps the open phase of one rank and hands every closed interval to its books.

    Only the thread that created it may switch, and during a backward pass also autograd's thread of the device
    (``helper``), for which the first one waits. Whatever comes from elsewhere, or in the middle of an update (a garbage
    collection or a signal handler that runs between two of our own bytecodes), is not entered.
    """

    __slots__ = ("_busy", "_owner", "books", "device", "helper", "phase", "since", "words")

    def __init__(self, words: memoryview, start_ns: int):
        self.words = words
        self.books = Books(words)
        self.device: DeviceClock | None = None
        self.phase = STARTUP
        self.since = start_ns
        self.helper = 0
        self._owner = _thread()
        self._busy = False
        words[_PHASE_AT] = STARTUP
        words[_SINCE_AT] = words[_ACCOUNTED_AT] = start_ns

    @property
    def stepping(self) -> bool:
        """Whether the first step has begun."""
        return self.words[WORD_AT["window_ns"][0]] != 0

    def enter(self, phase: int) -> int:
        """Opens ``phase``; returns what to ``leave``: the phase before, or NOT_ENTERED."""
        return self._switch(phase, None)

    def leave(self, old: int, parts: Parts | None = None) -> None:
        """Goes back to ``old``; ``parts`` splits the interval that ends now among causes."""
        if old != NOT_ENTERED:
            self._switch(old, parts)

    def _switch(self, phase: int, parts: Parts | None) -> int:
        old = self.phase
        if phase == old or self._busy or ((caller := _thread()) != self._owner and caller != self.helper):
            return NOT_ENTERED
        self._busy = True
        words = self.words
        words[SEQUENCE] += 1
        try:
            now = _now()
            if self.device is None:
                self.books.charge(old, now - self.since, parts)
                words[_ACCOUNTED_AT] = now
            else:
                self.device.mark(now, old, parts)
            self.since = words[_SINCE_AT] = now
            self.phase = words[_PHASE_AT] = phase
            if phase == COLLECTIVE:
                words[_COLLECTIVES_AT] += 1
        finally:
            words[SEQUENCE] += 1
            self._busy = False
        return old
