"""Records checkpoints: how long the loop is blocked in a save or a load, and the bytes.

An asynchronous save continues in a separate thread, so only its part in the training thread blocks the loop. The phase
machine ignores other threads.
"""

from __future__ import annotations

import functools
import io
import os
import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...ledger.causes import PHASE
from ..machine import DATA, NOT_ENTERED
from ..meters.save import SaveMeter
from ..patching import Patches
from ..returns import CheckpointFile, directory_of, file_of, step_in
from ..save_calls import saving_call
from .sources import is_batch

if TYPE_CHECKING:
    from types import ModuleType

    from ..session import Session

_SAVE, _LOAD, _LOGGING = PHASE["checkpoint"], PHASE["restore"], PHASE["logging"]
_LOGS = re.compile(r"\.(log|txt|csv|tsv|jsonl|out|err)$|/events\.out\.tfevents\.")
"""The names of files that loggers write."""
File = Callable[[tuple[Any, ...], dict[str, Any]], CheckpointFile]


def install_torch_save(session: Session) -> Callable[[], None]:
    import torch

    patches = Patches()
    for name, make in (("save", _saving_or_pickling(session)), ("load", _loading_or_copying(session))):
        patches.replace_in((torch, torch.serialization), name, make)
    session.state("torch_save", "active")

    def undo() -> None:
        patches.undo()
        session.saves.calls.undo()

    return undo


def install_dcp(session: Session) -> Callable[[], None]:
    """Installs the hook on torch.distributed.checkpoint. Every save calls ``_save_state_dict``, even if the user has
    imported the public function before the hook was installed."""
    patches = Patches()

    def patch_saver(module: ModuleType) -> None:
        patches.replace(module, "_save_state_dict", saving(session, _dcp_saved))
        # The package has its own name for it, if it was imported before.
        owners = (module, sys.modules["torch.distributed.checkpoint"])
        patches.replace_in([one for one in owners if hasattr(one, "async_save")], "async_save", _saving_behind(session))
        session.state("dcp", "active")

    def patch_loader(module: ModuleType) -> None:
        patches.replace(module, "_load_state_dict", _loading(session, _dcp_loaded))

    patches.when_imported("torch.distributed.checkpoint.state_dict_saver", patch_saver)
    patches.when_imported("torch.distributed.checkpoint.state_dict_loader", patch_loader)

    return patches.undo


def install_safetensors(session: Session) -> Callable[[], None]:
    patches = Patches()

    def patch(module: ModuleType) -> None:
        patches.replace(module, "save_file", saving(session, _argument_file(1, "filename")))
        patches.replace(module, "load_file", _loading(session, _argument_file(0, "filename")))
        session.state("safetensors", "active")

    patches.when_imported("safetensors.torch", patch)

    return patches.undo


def install_fsync(session: Session) -> Callable[[], None]:
    """Installs the hook on fsync. ``torch.save`` only fills the page cache; the fsync after it waits for the disk. If
    nothing was saved before it, and the file has the name of a log, the loop waits in a logger."""
    patches = Patches()

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def fsync(fd: Any) -> Any:
            machine = session.machine
            old = machine.enter_from_base(_LOGGING if _is_log(session, fd) else _SAVE)
            try:
                return original(fd)
            finally:
                machine.leave(old)

        return fsync

    for name in ("fsync", "fdatasync"):
        if hasattr(os, name):
            patches.replace(os, name, make)
    session.state("fsync", "active")
    return patches.undo


def _is_log(session: Session, fd: Any) -> bool:
    try:
        number = fd if isinstance(fd, int) else fd.fileno()
        return _LOGS.search(os.readlink(f"/proc/self/fd/{number}")) is not None and not session.saves.going_on
    except Exception:  # the call itself tells what is wrong
        return False


def saving(session: Session, file: File | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Brackets a save. ``file`` returns what was saved; None: the call only begins a save."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def save(*args: Any, **kwargs: Any) -> Any:
            machine, saves = session.machine, session.saves
            behind = file is _dcp_saved and not machine.mine()
            if not behind and file is not None:
                _begins(session)
            old = machine.enter_save(SaveMeter(session.task, session.threads))
            part = old == NOT_ENTERED and not behind and saves.part_begins("save")
            if old == NOT_ENTERED and not behind and not part:
                return _in_other_thread(session, original, args, kwargs)
            try:
                result = original(*args, **kwargs)
            finally:
                machine.leave_save(old)
                if part:
                    saves.part_ends()
            if file is not None:
                before = session.saves.files
                _count(session, "save", file, args, kwargs, behind)
                if file is not _dcp_saved and session.saves.files != before:
                    learn(session, sys._getframe(1))
            return result

        return save

    return make


def _begins(session: Session) -> None:
    try:
        session.saves.file_begins()
    except Exception as error:  # the fence around the training
        session.fault("torch_save", error)


def learn(session: Session, frame: Any) -> None:
    """What has called a save at ``frame`` is a checkpoint as a whole, from its next call on."""
    try:
        session.saves.calls.learn(*saving_call(frame))
    except Exception as error:  # the fence around the training
        session.fault("torch_save", error)


def _saving_or_pickling(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As `saving`, but what is saved into memory counts only if it is written to a file then."""
    bracket = saving(session, _argument_file(1, "f"))

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        to_file = bracket(original)

        def save(*args: Any, **kwargs: Any) -> Any:
            target = kwargs.get("f", args[1] if len(args) > 1 else None)
            if not _in_memory(target) or session.saves.in_framework:
                if not isinstance(target, (str, os.PathLike)) and session.machine.mine():
                    session.saves.object_begins()
                return to_file(*args, **kwargs)
            begun = time.monotonic_ns()
            result = original(*args, **kwargs)
            try:
                size: int = target.tell()  # type: ignore[union-attr]
                session.saves.pickled(size, time.monotonic_ns() - begun, sys._getframe(1))
            except Exception as error:  # the fence around the training
                session.fault("torch_save", error)
            return result

        return save

    return make


def _loading_or_copying(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As `_loading`, but nothing is restored from memory."""
    bracket = _loading(session, _argument_file(0, "f"))

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        from_file = bracket(original)

        def load(*args: Any, **kwargs: Any) -> Any:
            source = kwargs.get("f", args[0] if args else None)
            if _in_memory(source) and not session.saves.in_framework:
                return original(*args, **kwargs)
            return from_file(*args, **kwargs)

        return load

    return make


def _in_memory(file: Any) -> bool:
    """Not an object derived from BytesIO: it may send what is written to it somewhere."""
    return type(file) is io.BytesIO


def _in_other_thread(session: Session, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Runs a save that is not the loop's. In another thread than the training thread, it is a save behind the loop."""
    if session.machine.mine():
        return original(*args, **kwargs)
    behind = session.saves.behind
    behind.begins()
    try:
        return original(*args, **kwargs)
    finally:
        behind.ends()


def _saving_behind(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Brackets the beginning of an asynchronous save, and waits for its end."""
    begin = saving(session, None)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        inner = begin(original)

        def async_save(*args: Any, **kwargs: Any) -> Any:
            session.saves.begins_behind()
            begun = time.monotonic_ns()
            result = inner(*args, **kwargs)
            try:
                completed = getattr(result, "upload_completion", result)
                behind, when_done = session.saves.behind, completed.add_done_callback
                apart = getattr(kwargs.get("async_checkpointer_type"), "value", "") == "process"
                behind.begins(apart, begun)
                when_done(lambda future: behind.ends())
                for future in {completed, getattr(result, "staging_completion", completed)}:
                    future.result = _awaiting(session, future.result)
                    future.add_done_callback(_forget_result)  # it refers to the future, which must not last for that
                # If a separate process saves, the hooks do not see it, but its future tells when it is done.
                if apart:
                    completed.add_done_callback(lambda future: _saved_behind(session, future))
            except Exception as error:  # the fence around the training
                session.fault("dcp", error)
            return result

        return async_save

    return make


def _awaiting(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def result(*args: Any, **kwargs: Any) -> Any:
        machine = session.machine
        old = machine.enter_from_base(_SAVE)
        try:
            return original(*args, **kwargs)
        finally:
            machine.leave(old)
            del args, kwargs  # as in `sources`

    return result


def _forget_result(future: Any) -> None:
    vars(future).pop("result", None)


def _saved_behind(session: Session, future: Any) -> None:
    if not future.cancelled() and future.exception() is None:
        _count(session, "save", None, (), {}, behind=True)


def _loading(session: Session, file: File | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def load(*args: Any, **kwargs: Any) -> Any:
            machine, saves = session.machine, session.saves
            if saves.loads_batches and machine.stepping and (old := machine.enter_from_base(DATA)) != NOT_ENTERED:
                return _load_batch(session, old, original, file, args, kwargs)
            # A dataset that loads its samples with torch.load does so inside a wait for data. That is not a restore.
            own, part, early = session.own_task(), False, False
            old = machine.enter_from_base(_LOAD)
            try:
                if old == NOT_ENTERED:
                    own, part = None, saves.part_begins("load")
                early = session.asleep and saves.early_begins()
                result = original(*args, **kwargs)
                if own is not None and machine.stepping and is_batch(result):
                    saves.loads_batches = True
                    machine.was(DATA)
            finally:
                if own is not None:
                    own.spent()
                    machine.leave(old)
                elif part:
                    saves.part_ends()
                if early:
                    saves.early_ends()
            if (own is not None and not saves.loads_batches) or part or early or session.asleep:
                _count(session, "load", file, args, kwargs, loaded=result)
            return result

        return load

    return make


def _load_batch(
    session: Session,
    old: int,
    original: Callable[..., Any],
    file: File | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """A load in a loop that reads its batches from files. It is in the phase `data`."""
    machine = session.machine
    meter = session.fetch_begins()
    batch = True
    try:
        result = original(*args, **kwargs)
        batch = is_batch(result)
    finally:
        if batch:
            session.fetch_ends()
            machine.leave(old, meter)
        else:
            machine.fetching = None
            machine.was(_LOAD)
            machine.leave(old)
    if not batch:
        session.saves.loads_batches = False
        _count(session, "load", file, args, kwargs, loaded=result)
    return result


def _count(
    session: Session,
    kind: str,
    file: File | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    behind: bool = False,
    loaded: Any = None,
) -> None:
    try:
        found = file(args, kwargs) if file is not None else CheckpointFile()
        session.saves.done(kind, found._replace(step=step_in(loaded)), behind)
    except Exception as error:  # the fence around the training
        session.fault("torch_save", error)


def _argument_file(position: int, name: str) -> File:
    """The file that an argument names or is."""

    def file(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CheckpointFile:
        return file_of(kwargs.get(name, args[position] if len(args) > position else None))

    return file


def _dcp_saved(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CheckpointFile:
    """The directory that this rank wrote to, and how many bytes. DCP's files are named ``__<rank>_<n>.distcp``. Nothing
    if it does not write files."""
    path = getattr(kwargs.get("storage_writer", args[1] if len(args) > 1 else None), "path", None)
    return directory_of(path, bytes_of_rank(path)) if isinstance(path, (str, os.PathLike)) else CheckpointFile()


def _dcp_loaded(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CheckpointFile:
    path = getattr(kwargs.get("storage_reader", args[1] if len(args) > 1 else None), "path", None)
    return directory_of(path) if isinstance(path, (str, os.PathLike)) else CheckpointFile()


def bytes_of_rank(path: str | os.PathLike[str]) -> int:
    """The bytes of the files of DCP's format in a directory that this rank has written."""
    import torch.distributed as distributed

    rank = distributed.get_rank() if distributed.is_initialized() else 0
    try:
        with os.scandir(path) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.name.startswith(f"__{rank}_"))
    except OSError:
        return 0
