"""Where the training thread is while a phase lasts, and for what it may wait there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from ..ledger.causes import PHASE
from ..ledger.layout import STRINGS, WORD_AT
from ..ledger.threads import AWAITS_ITEMS, AWAITS_THREADS, RUNS, Other, stored
from .threads import OURS, OwnThreads, named
from .user_code import Place, called, places

if TYPE_CHECKING:
    from .machine import PhaseMachine

_AGAIN_NS = 1_000_000_000
_SHUTDOWN = PHASE["shutdown"]
_PHASE_AT, _SINCE_AT, _STUCK_SINCE_AT = (WORD_AT[name][0] for name in ("phase", "phase_since_ns", "stuck_since_ns"))


class Lasting:
    """For the watcher's thread."""

    def __init__(self, machine: PhaseMachine, threads: OwnThreads):
        self._machine = machine
        self._threads = threads
        self._written_ns = 0

    def found(self, stack: list[Place], frame: FrameType, since: int, now: int) -> None:
        """A look at a phase that lasts since then has found the training thread there."""
        machine, words = self._machine, self._machine.words
        again = words[_STUCK_SINCE_AT] == since and now - self._written_ns < _AGAIN_NS
        if again or words[_SINCE_AT] != since:
            return
        self._written_ns = now
        library, call = stack[0].library if stack else "threading", called(frame)
        machine.write_string("stuck_line", str(stack[0]) if stack else "")
        machine.write_string("stuck_call", "" if library == "torch" or not stack else call[: STRINGS["stuck_call"]])
        waits = library in AWAITS_THREADS and (stack or words[_PHASE_AT] == _SHUTDOWN)
        others = list(self._awaited(call if stack else "")) if waits else []
        machine.write_string("stuck_threads", stored(others, STRINGS["stuck_threads"]))
        words[_STUCK_SINCE_AT] = since

    def ends(self) -> None:
        words = self._machine.words
        if words[_STUCK_SINCE_AT]:
            words[_STUCK_SINCE_AT] = 0
            for name in ("stuck_line", "stuck_call", "stuck_threads"):
                self._machine.write_string(name, "")

    def _awaited(self, call: str) -> Iterator[Other]:
        """The threads of the program for which the training thread may wait in this function. Empty: in the end of the
        interpreter, which waits for threads that are not daemons."""
        running, alive = sys._current_frames(), threading.enumerate()
        if call.partition(".")[0] in AWAITS_ITEMS:
            names = set(map(named, alive))  # one may have been started again
            ended = (*((self._threads.raised,) if self._threads.raised is not None else ()), *self._threads.fates)
            yield from (one for one in ended if one.name not in names)
        for thread in alive:
            if thread.ident == self._machine.owner or thread.name.startswith(OURS) or (thread.daemon and not call):
                continue
            if (place := next(places(running.get(thread.ident or 0)), None)) is not None:
                yield Other(RUNS, "", str(place), named(thread))
