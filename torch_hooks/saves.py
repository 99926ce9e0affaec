"""Checkpoints of this rank: how many, how large, and from which step a restarted run continues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ledger.causes import CHECKPOINT_KINDS
from ..ledger.layout import WORD_AT
from .beside.own import Behind
from .restart import FIRST, Restart

if TYPE_CHECKING:
    from .session import Session

_CHECKPOINTS_AT, _BYTES_AT = WORD_AT["checkpoints"][0], WORD_AT["checkpoint_bytes"][0]
_KIND = {name: index for index, name in enumerate(CHECKPOINT_KINDS)}
_BASE_AT, _STEPS_AT = WORD_AT["base_step"][0], WORD_AT["steps"][0]
_BEHIND_AT = WORD_AT["saves_behind"][0]
_SAVED_AT, _UNTIL_AT = WORD_AT["checkpoint_step"][0], WORD_AT["recompute_until"][0]


class Saves:
    """The object that the hooks of saves and loads call."""

    def __init__(self, session: Session):
        self._session = session
        self.forget()

    def forget(self) -> None:
        self.behind = Behind()
        """When saves are in progress behind the loop."""
        self._restored = False
        self._restored_early = False
        self._before = FIRST
        self._saving_step = -1
        self._whole = ""
        """The kind of a framework's open save or load. What is saved inside it is a part of it."""
        self._part_open = False
        self._parts: list[int] = []

    def resume(self, before: Restart) -> None:
        """The ledger was created. ``before``: how far earlier attempts had come."""
        self._before = before
        if self._restored_early:
            self._go_on()

    def begins_behind(self) -> None:
        """An asynchronous save begins. It saves the state of the current step, not that of the step when it ends."""
        if self._session.writer is not None:
            self._saving_step = self._step_number()

    def whole_begins(self, kind: str) -> None:
        """A framework's save or load, which may have several files, begins in the training thread."""
        self._whole, self._part_open = kind, False
        self._parts.clear()

    def part_begins(self, kind: str) -> bool:
        """Whether the caller's save or load is a direct part of an open one, and not nested inside another part."""
        if self._whole != kind or self._part_open or not self._session.machine.mine():
            return False
        self._part_open = True
        return True

    def part_ends(self) -> None:
        self._part_open = False

    def whole_ends(self, finished: bool) -> None:
        """A framework's save or load ends. It counts once if it ``finished`` and has parts: some ranks only wait."""
        kind, self._whole = self._whole, ""
        if finished and self._parts:
            self.done(kind, sum(self._parts))
        self._parts.clear()

    def done(self, kind: str, size: int, behind: bool = False) -> None:
        """A save or load has finished. ``size`` in bytes; 0 if unknown. ``behind``: it was asynchronous."""
        session = self._session
        if session.writer is None:
            # If recording begins at the first batch, the script has often restored before.
            self._restored_early = self._restored_early or (session.asleep and kind == "load")
            return
        if kind == self._whole and not behind:
            self._parts.append(size)
            return
        words = session.writer.words
        words[_CHECKPOINTS_AT + _KIND[kind]] += 1
        words[_BYTES_AT + _KIND[kind]] += size
        if kind == "save":
            words[_BEHIND_AT] += behind
            words[_SAVED_AT] = self._saving_step if behind else self._step_number()
        else:
            self._go_on()

    def _step_number(self) -> int:
        """The step of a save that begins now: the host's number of steps. Its device may lag behind."""
        words = self._session.writer.words  # type: ignore[union-attr]
        return words[_BASE_AT] + self._session.machine.steps

    def _go_on(self) -> None:
        """If this is a restore before the first step, this attempt continues from the last saved step."""
        words = self._session.writer.words  # type: ignore[union-attr]
        if words[_STEPS_AT] or self._restored:
            return
        self._restored = True
        if self._before.checkpoint_step >= 0:
            words[_BASE_AT] = self._before.checkpoint_step
            words[_UNTIL_AT] = self._before.steps
        else:
            # No ledger here knows of the save that was restored (for example, rank 0 is on another node). So it is not
            # known which steps are repeated, and none counts as repeated.
            words[_UNTIL_AT] = 0
