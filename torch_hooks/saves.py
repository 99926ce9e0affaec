"""Checkpoints of this rank: how many, how large, and from which step a restarted run continues."""

from __future__ import annotations

import threading
import time
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from ..ledger.causes import CHECKPOINT_KINDS, PHASE
from ..ledger.layout import SAVES_KEPT, WORD_AT
from .beside.own import Behind
from .machine import AROUND, NOT_ENTERED, RESTORE, STARTUP
from .meters.save import SaveMeter
from .null_machine import NullMachine
from .one_save import AGAIN_NS, FRAMEWORK, Key, OneSave, Pickled
from .restart import FIRST, Restart
from .returns import Beginning, CheckpointFile, beginning_of, match
from .save_calls import SaveCalls, saving_call
from .written import written

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


USER_PHASE = "phase"
"""Stands for a phase that the user marks, where a function that saves is expected."""
_SAVE = PHASE["checkpoint"]


class OpenCall:
    """A call of a function that saves, or a phase that the user marks as a checkpoint."""

    __slots__ = ("code", "in_memory", "old", "written")

    def __init__(self, code: CodeType | str, old: int, written: int):
        self.code, self.old, self.written = code, old, written
        self.in_memory = 0
        """Bytes that were saved into memory."""


class Saves:
    """The object that the hooks of saves and loads call."""

    def __init__(self, session: Session):
        self._session = session
        self._one = OneSave(session)
        self.calls = SaveCalls(session)
        self.forget()

    def forget(self) -> None:
        self._loaded: list[CheckpointFile] = []
        """Before the first step."""
        self.behind = Behind()
        """When saves are in progress behind the loop."""
        self.early_ns = self._early_begun = 0
        """For how long the main thread has loaded files before the recording began."""
        self._before = FIRST
        self._saving_step = -1
        self._whole = ""
        """The kind of a framework's open save or load. What is saved inside it is a part of it."""
        self._part_open = False
        self._parts: list[CheckpointFile] = []
        self.loads_batches = False
        """Whether the loop loads its batches as others load checkpoints."""
        self.files = 0
        """How many files the training thread has saved outside known calls."""
        self._written = -1  # what had been written before the open save of a file whose size nothing else tells
        self.call: OpenCall | None = None
        self.in_memory: Pickled | None = None
        """While either of these two is there, `loop_goes_on` must be told."""
        self._one.forget()

    def resume(self, before: Restart) -> None:
        """The ledger was created. ``before``: how far earlier attempts had come."""
        self._before = before
        if self._loaded:
            self._go_on()

    def early_begins(self) -> bool:
        """A load begins before the recording. Returns whether `early_ends` must be called."""
        if self._early_begun or threading.current_thread() is not threading.main_thread():
            return False
        self._early_begun = time.monotonic_ns()
        return True

    def early_ends(self) -> None:
        ns, self._early_begun = time.monotonic_ns() - self._early_begun, 0
        self.early_ns += ns
        machine = self._session.machine
        if not isinstance(machine, NullMachine) and machine.mine() and machine.phase == STARTUP:
            machine.was_in(RESTORE, ns)  # collectives of the load have begun the recording

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

    # -- calls that save

    @property
    def in_framework(self) -> bool:
        """Whether a framework's save or load is open."""
        return bool(self._whole) and self.call is None

    @property
    def going_on(self) -> bool:
        """Whether a file was saved just now, so that what follows may be a part of the checkpoint."""
        return self._one.goes_on()

    def call_begins(self, code: CodeType | str) -> OpenCall | None:
        """A function that saves is called, or the user's phase begins. None if this call does not count by itself:
        it is a part of one, for example. Never raises."""
        session = self._session
        try:
            machine = session.machine
            if session.writer is None or self._whole or code in self.calls.refused:
                return None
            if not (machine.admits() and machine.mine()):
                return None
            self.file_begins(code)
            old = machine.enter_save(SaveMeter(session.task, session.threads))
            if old == NOT_ENTERED:
                return None
            self.whole_begins("save")
            self.call = OpenCall(code, old, written(session.writer))
            return self.call
        except Exception as error:  # the fence around the training
            session.fault("torch_save", error)
            return None

    def call_ends(self, call: OpenCall) -> None:
        """Never raises."""
        session = self._session
        try:
            if self.call is call:
                self.call = None
                self._count_call(call)
        except Exception as error:  # the fence around the training
            session.fault("torch_save", error)

    def _count_call(self, call: OpenCall) -> None:
        session = self._session
        grown = written(session.writer) - call.written if call.written >= 0 else -1
        session.machine.leave_save(call.old)
        parts, self._whole = self._parts[:], ""
        self._parts.clear()
        by_user = call.code == USER_PHASE and grown != 0
        if not (parts or by_user or (call.in_memory and not 0 <= grown < call.in_memory)):
            return  # other ranks save, and this one has waited for them
        size = max(grown, sum(part.size for part in parts))
        self._done_here(call.code, CheckpointFile(size), parts)

    def loop_goes_on(self) -> None:
        """The loop asks for a batch, or a backward pass begins: what saves has returned. Never raises."""
        session = self._session
        try:
            if not session.machine.mine():
                return
            self._settle()
            call = self.call
            if call is not None and not isinstance(call.code, str):
                self.calls.refused.add(call.code)
                if session.machine.phase != _SAVE:  # in an evaluation, which ends before the function does
                    return
                self.call = None
                self._count_call(call)
        except Exception as error:  # the fence around the training
            session.fault("torch_save", error)

    def file_begins(self, key: Key = None) -> None:
        """A file is about to be saved in the training thread. Call it before entering the phase."""
        if self.in_memory is not None:
            self._settle()
        if not self._whole and self._session.machine.mine() and self._one.goes_on(key):
            self._one.join()

    def object_begins(self) -> None:
        """What is about to be saved is written to an object: a file, or a member of an archive."""
        self._written = written(self._session.writer)

    def _sized(self, file: CheckpointFile) -> CheckpointFile:
        before, self._written = self._written, -1
        if file.size or before < 0:
            return file
        return file._replace(size=max(0, written(self._session.writer) - before))

    def pickled(self, size: int, ns: int, frame: FrameType | None) -> None:
        """``size`` bytes were saved into memory, in ``ns``."""
        session = self._session
        if session.writer is None or not session.machine.mine():
            return
        if self.call is not None:
            self.call.in_memory += size
        elif not self._whole and (now := written(session.writer)) >= 0:
            phase = session.machine.phase
            self.in_memory = Pickled(size, now, ns, phase, saving_call(frame), self.in_memory)

    def _settle(self) -> None:
        """Whether what was last saved into memory was written to a file is known now."""
        found, self.in_memory = self.in_memory, None
        session = self._session
        saved = found.saved(written(session.writer)) if found is not None else None
        if found is None or saved is None:
            return
        size, ns = saved
        if found.phase in AROUND and session.machine.device is None:
            session.machine.reclassify(found.phase, PHASE["checkpoint"], ns)
        self.calls.learn(*found.call)
        self._done_here(None, CheckpointFile(size), [])

    def _done_here(self, key: Key, file: CheckpointFile, parts: list[CheckpointFile]) -> None:
        """Counts a checkpoint of the training thread, or a further file of the last one."""
        writer = self._session.writer
        if writer is None:
            return
        words = writer.words
        if not self._one.goes_on(key):
            words[_CHECKPOINTS_AT] += 1
        words[_BYTES_AT] += file.size
        words[_SAVED_AT] = step = self._step_number()
        for part in parts or [file]:
            self._note(step, part)
        # The next attempt must know of it, also if this process is killed now. There may be thousands of files.
        writer.file.flush(AGAIN_NS)
        self._one.ended(key)

    def close(self) -> None:
        """The recording ends."""
        if self.call is not None or self.in_memory is not None:
            self.loop_goes_on()

    # -- frameworks

    def whole_ends(self, finished: bool) -> None:
        """A framework's save or load ends. It counts once if it ``finished`` and has parts: some ranks only wait."""
        kind, self._whole = self._whole, ""
        if finished and self._parts:
            # The files of a save are in one directory, and have different times.
            place = self._parts[-1].folder if kind == "save" else 0
            self._loaded += self._parts[: _MOST_LOADED - len(self._loaded)] if kind == "load" else ()
            self.done(kind, CheckpointFile(sum(part.size for part in self._parts), place), key=FRAMEWORK)
        self._parts.clear()

    def done(self, kind: str, file: CheckpointFile = _UNKNOWN, behind: bool = False, key: Key = None) -> None:
        """A save or load of a file has finished. ``behind``: it was asynchronous. ``key``: see `OneSave`."""
        session = self._session
        if session.writer is None:
            # If recording begins at the first batch, the script has often restored before.
            if session.asleep and kind == "load" and len(self._loaded) < _MOST_LOADED:
                self._loaded.append(file)
            return
        if kind == "save" and not behind and session.machine.mine():
            file = self._sized(file)
        if kind == self._whole and not behind:
            self._parts.append(file)
            return
        if kind == "save" and not behind and session.machine.mine():
            self.files += key is None
            self._done_here(key, file, [])
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
