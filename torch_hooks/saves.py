"""Checkpoints of this rank: how many, how large, and from which step a restarted run goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ledger.causes import CHECKPOINT_KINDS
from ..ledger.layout import WORD_AT

if TYPE_CHECKING:
    from .session import Session

_CHECKPOINTS_AT, _BYTES_AT = WORD_AT["checkpoints"][0], WORD_AT["checkpoint_bytes"][0]
_KIND = {name: index for index, name in enumerate(CHECKPOINT_KINDS)}
_BASE_AT, _STEPS_AT = WORD_AT["base_step"][0], WORD_AT["steps"][0]
_SAVED_AT, _UNTIL_AT = WORD_AT["checkpoint_step"][0], WORD_AT["recompute_until"][0]


class Saves:
    """What the hooks of saves and loads tell."""

    def __init__(self, session: Session):
        self._session = session
        self.forget()

    def forget(self) -> None:
        self._restored = False
        self._restored_early = False
        self._restore_step = -1
        self._saving_step = -1
        self._whole = ""
        """Of a framework's save or load that is open: which of both. What is saved inside is a part of it."""
        self._part_open = False
        self._parts: list[int] = []

    def resume(self, restore_step: int) -> None:
        """The ledger is there; an earlier attempt had last saved ``restore_step``, -1 where none is known."""
        self._restore_step = restore_step
        if self._restored_early:
            self._go_on()

    def begins_behind(self) -> None:
        """An asynchronous save begins: what it will have saved is the state of now, not of when it is through."""
        if self._session.writer is not None:
            self._saving_step = self._step_number()

    def whole_begins(self, kind: str) -> None:
        """A framework's save or load begins in the training thread: files that belong together."""
        self._whole, self._part_open = kind, False
        self._parts.clear()

    def part_begins(self, kind: str) -> bool:
        """Whether the caller's save or load is a part of an open one, and not of one of its parts."""
        if self._whole != kind or self._part_open or not self._session.machine.mine():
            return False
        self._part_open = True
        return True

    def part_ends(self) -> None:
        self._part_open = False

    def whole_ends(self, finished: bool) -> None:
        """It counts once if it has ``finished`` and something was saved in it: some ranks only wait for the others."""
        kind, self._whole = self._whole, ""
        if finished and self._parts:
            self.done(kind, sum(self._parts))
        self._parts.clear()

    def done(self, kind: str, size: int, behind: bool = False) -> None:
        """A save or load has finished; ``size`` in bytes, 0 where unknown. ``behind``: in a thread of its own."""
        session = self._session
        if session.writer is None:
            # A script that is not recorded before its first batch has often restored by then.
            self._restored_early = self._restored_early or (session.asleep and kind == "load")
            return
        if kind == self._whole and not behind:
            self._parts.append(size)
            return
        words = session.writer.words
        words[_CHECKPOINTS_AT + _KIND[kind]] += 1
        words[_BYTES_AT + _KIND[kind]] += size
        if kind == "save":
            words[_SAVED_AT] = self._saving_step if behind else self._step_number()
        else:
            self._go_on()

    def _step_number(self) -> int:
        """Of what a save that begins now has: the host's, not that of the steps that its device has passed."""
        words = self._session.writer.words  # type: ignore[union-attr]
        return words[_BASE_AT] + self._session.machine.steps

    def _go_on(self) -> None:
        """Restored before the first step: this attempt goes on from the last step that was saved."""
        words = self._session.writer.words  # type: ignore[union-attr]
        if words[_STEPS_AT] or self._restored:
            return
        self._restored = True
        if self._restore_step >= 0:
            words[_BASE_AT] = self._restore_step
        else:
            # Restored from a save that no ledger here knows of (rank 0 of another node's): which steps are repeated
            # cannot be told, so none is said to be.
            words[_UNTIL_AT] = 0
