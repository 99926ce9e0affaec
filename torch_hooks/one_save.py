"""What belongs to one checkpoint: the files that are saved between two things that the loop does, and the time between
these files."""

from __future__ import annotations

import time
from types import CodeType
from typing import TYPE_CHECKING, Any

from ..ledger.causes import PHASE
from ..ledger.layout import WORD_AT
from .machine import AROUND
from .meters.save import SaveMeter
from .null_machine import NullMachine

if TYPE_CHECKING:
    from .session import Session

_LOOP_AT = [WORD_AT[name][0] for name in ("batches", "backwards")]
_SAVE = PHASE["checkpoint"]
GAP_NS = 1_000_000_000
"""The longest time between two files of one checkpoint."""
AGAIN_NS = 10_000_000
"""The same if one function saves both of them, in two calls."""
Key = CodeType | str | None
"""What saves: a function of the program; FRAMEWORK; None: the loop's own code calls a function that saves one file."""
FRAMEWORK = "framework"
"""Each of its calls is a checkpoint."""


class OneSave:
    """The checkpoint that was last saved, in the training thread."""

    __slots__ = ("_ended_ns", "_key", "_mark", "_meter", "_session", "_since")

    def __init__(self, session: Session):
        self._session = session
        self.forget()

    def forget(self) -> None:
        self._mark: tuple[int, ...] = ()
        self._key: Key = None
        self._ended_ns = self._since = 0
        self._meter: SaveMeter | None = None

    def place(self) -> tuple[int, ...]:
        """How far the loop is."""
        writer = self._session.writer
        words = writer.words if writer is not None else ()
        return (self._session.machine.steps, *[words[at] for at in _LOOP_AT]) if words else ()

    def goes_on(self, key: Key = None) -> bool:
        """Whether what is saved now is a part of the last checkpoint."""
        if not self._mark or self._mark != self.place():
            return False
        if key is not None and key == self._key:
            return key != FRAMEWORK and time.monotonic_ns() - self._ended_ns <= AGAIN_NS
        return time.monotonic_ns() - self._ended_ns <= GAP_NS

    def join(self) -> None:
        """Counts the time since the last file of the open checkpoint as a part of it."""
        machine, meter = self._session.machine, self._meter
        old = machine.phase
        if meter is None or isinstance(machine, NullMachine) or old not in AROUND or not machine.admits():
            return
        self._meter = None
        if machine.since == self._since:
            machine.was(_SAVE)
            machine.saving = meter
            machine.cut(old)
            machine.saving = None
        elif machine.device is None:  # a garbage collection, for example, has interrupted it
            machine.reclassify(old, _SAVE, time.monotonic_ns() - self._ended_ns)

    def ended(self, key: Key) -> None:
        """A file, or a checkpoint, was saved. Call it after the phase was left."""
        session, machine = self._session, self._session.machine
        self._mark, self._key = self.place(), key
        self._ended_ns, self._since = time.monotonic_ns(), machine.since
        self._meter = SaveMeter(session.task, session.threads)
        self._meter.begin()


class Pickled:
    """What was saved into memory is a checkpoint if its bytes are written to a file before the loop goes on.

    Pickle saves each tensor of a state into memory by itself, and then writes it.
    """

    __slots__ = ("all_ns", "all_size", "begun", "call", "ns", "phase", "size", "written")

    def __init__(
        self,
        size: int,
        written: int,
        ns: int,
        phase: int,
        call: tuple[CodeType | None, Any],
        before: Pickled | None = None,
    ):
        """``written``: how many bytes the process has written to files before. ``before``: what was saved into memory
        before that."""
        self.size, self.written, self.ns, self.phase = size, written, ns, phase
        self.all_size, self.all_ns, self.begun = size, ns, written
        if before is not None and before.phase == phase:
            self.all_size, self.all_ns, self.begun = before.all_size + size, before.all_ns + ns, before.begun
        self.call = call
        """The function that saves, and where it is defined."""

    def saved(self, written: int) -> tuple[int, int] | None:
        """The bytes of the checkpoint, and for how many ns it was saved into memory; None if it is not one.
        ``written``: what the process has written to files by now."""
        if self.size <= 0 or written - self.written < self.size:
            return None
        together = written - self.begun >= self.all_size
        return (written - self.begun, self.all_ns) if together else (written - self.written, self.ns)
