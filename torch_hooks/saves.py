"""Checkpoints of this rank: how many, how large, and from which step a restarted run continues."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..ledger.causes import CHECKPOINT_KINDS
from ..ledger.layout import SAVES_KEPT, WORD_AT
from .beside.own import Behind
from .restart import FIRST, Restart
from .returns import Beginning, CheckpointFile, beginning_of, match

if TYPE_CHECKING:
    from .session import Session

_CHECKPOINTS_AT, _BYTES_AT = WORD_AT["checkpoints"][0], WORD_AT["checkpoint_bytes"][0]
_KIND = {name: index for index, name in enumerate(CHECKPOINT_KINDS)}
_BASE_AT, _STEPS_AT = WORD_AT["base_step"][0], WORD_AT["steps"][0]
_BEHIND_AT = WORD_AT["saves_behind"][0]
_SAVED_AT, _UNTIL_AT = WORD_AT["checkpoint_step"][0], WORD_AT["recompute_until"][0]
_BEGINNING_AT, _COMMAND_AT = WORD_AT["beginning"][0], WORD_AT["command_hash"][0]
_RESTORED_AT, _RESTORED_OF_AT = WORD_AT["restored_step"][0], WORD_AT["restored_attempt"][0]
_NOTED_AT = WORD_AT["saves_noted"][0]
_STEP_AT, _PATH_AT, _UNIX_AT = (WORD_AT[f"saved_{name}"][0] for name in ("step", "path", "unix_ns"))
_UNKNOWN = CheckpointFile()
_MOST_LOADED = 64
"""How many files that were loaded before the first step are kept in mind."""


class Saves:
    """The object that the hooks of saves and loads call."""

    def __init__(self, session: Session):
        self._session = session
        self.forget()

    def forget(self) -> None:
        self._loaded: list[CheckpointFile] = []
        """Before the first step."""
        self.behind = Behind()
        """When saves are in progress behind the loop."""
        self._before = FIRST
        self._saving_step = -1
        self._whole = ""
        """The kind of a framework's open save or load. What is saved inside it is a part of it."""
        self._part_open = False
        self._parts: list[CheckpointFile] = []

    def resume(self, before: Restart) -> None:
        """The ledger was created. ``before``: how far earlier attempts had come."""
        self._before = before
        if self._loaded:
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
            # The files of a save are in one directory, and have different times.
            place = self._parts[-1].folder if kind == "save" else 0
            self._loaded += self._parts[: _MOST_LOADED - len(self._loaded)] if kind == "load" else ()
            self.done(kind, CheckpointFile(sum(part.size for part in self._parts), place))
        self._parts.clear()

    def done(self, kind: str, file: CheckpointFile = _UNKNOWN, behind: bool = False) -> None:
        """A save or load of a file has finished. ``behind``: it was asynchronous."""
        session = self._session
        if session.writer is None:
            # If recording begins at the first batch, the script has often restored before.
            if session.asleep and kind == "load" and len(self._loaded) < _MOST_LOADED:
                self._loaded.append(file)
            return
        if kind == self._whole and not behind:
            self._parts.append(file)
            return
        words = session.writer.words
        words[_CHECKPOINTS_AT + _KIND[kind]] += 1
        words[_BYTES_AT + _KIND[kind]] += file.size
        if kind == "save":
            words[_BEHIND_AT] += behind
            words[_SAVED_AT] = step = self._saving_step if behind else self._step_number()
            self._note(step, file)
        elif not words[_STEPS_AT] and len(self._loaded) < _MOST_LOADED:
            self._loaded.append(file)
            self._go_on()

    def _note(self, step: int, file: CheckpointFile) -> None:
        """For a later attempt that restores this save."""
        words = self._session.writer.words  # type: ignore[union-attr]
        at = words[_NOTED_AT] % SAVES_KEPT
        words[_STEP_AT + at], words[_PATH_AT + at] = step, file.path
        words[_UNIX_AT + at] = file.modified_ns or -time.time_ns()
        words[_NOTED_AT] += 1

    def _step_number(self) -> int:
        """The step of a save that begins now: the host's number of steps. Its device may lag behind."""
        words = self._session.writer.words  # type: ignore[union-attr]
        return words[_BASE_AT] + self._session.machine.steps

    def _go_on(self) -> None:
        """Before the first step, checkpoints were loaded: this attempt continues from the step of the newest one."""
        words = self._session.writer.words  # type: ignore[union-attr]
        found = beginning_of(self._before, self._loaded, words[_COMMAND_AT])
        if found is None:
            # No ledger here knows of the save that was restored (for example, rank 0 is on another node). So it is not
            # known which steps are repeated, and none counts as repeated.
            words[_UNTIL_AT] = 0
            return
        words[_BASE_AT] = found.step
        self._begin(found)

    def numbered(self, step: int) -> None:
        """The user says how many steps were done before the first step of this process."""
        file = CheckpointFile(step=step)
        if step > 0 and match(self._before.saves, file) is not None:
            words = self._session.writer.words  # type: ignore[union-attr]
            if (found := beginning_of(self._before, [file], words[_COMMAND_AT])) is not None:
                self._begin(found)

    def _begin(self, found: Beginning) -> None:
        words = self._session.writer.words  # type: ignore[union-attr]
        words[_UNTIL_AT], words[_BEGINNING_AT] = found.repeat_until, found.kind
        words[_RESTORED_AT], words[_RESTORED_OF_AT] = found.step + 1, found.attempt + 1
