"""The public API: attach, detach, phase, share, step."""

from __future__ import annotations

import atexit
import copyreg
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from ..ledger.causes import PHASE, USER_PHASES
from .books import Splitter
from .ending import failed, interrupted, watch_exit, watch_hard_exit, watch_stop
from .machine import CHECKPOINT, DATA, NOT_ENTERED
from .notices import say
from .saves import USER_PHASE, OpenCall
from .session import Session, raise_failure
from .tasks import OwnTask

if TYPE_CHECKING:
    from .shares.share import Share

_session = Session()
_undo: list[Callable[[], None]] = []
_installed = False
_armed = False
_registered = False
_warned: set[str] = set()
_NAMED, _LOGGING = (PHASE["eval"], PHASE["rollout"]), PHASE["logging"]


def _of_this_process() -> Session:
    return _session


def _copied(_: Session) -> tuple[Callable[[], Session], tuple[()]]:
    """cloudpickle copies functions of `__main__` with what they refer to, wrappers of hooks, too. The copy belongs to
    the process that reads it."""
    return _of_this_process, ()


copyreg.pickle(Session, _copied)


def attach() -> bool:
    """Starts recording this rank. Call it once, anywhere before the loop. Idempotent; never raises.

    Needs no agent, GPU or process group. Returns whether the rank is being recorded. It is not if the environment has
    ``WHYIDLE=0``, or if no ledger can be created, which is logged once to stderr. In a process that a rank has started,
    for example a data worker that imports the script, recording begins with the first backward pass.
    """
    try:
        if os.environ.get("WHYIDLE") == "0":
            return False
        if _session.writer is not None:
            return True
        _install()
        _session.asleep = True
        return _session.wake(attached=True)
    except Exception as error:  # the fence around the training
        say(f"not attached: {error}")
        return False


def arm() -> bool:
    """Installs the hooks, and starts recording at the first sign of training. ``whyidle run`` uses this.

    So a process that never trains (a launcher, a data-loading worker) creates no ledger. Never raises.
    """
    global _armed
    try:
        if os.environ.get("WHYIDLE") == "0" or _installed:
            return _installed
        _install()
        _armed = _session.asleep = True
        return True
    except Exception as error:  # the fence around the training
        say(f"not armed: {error}")
        return False


def detach() -> None:
    """Ends the recording and restores every patched function. Idempotent; never raises."""
    global _installed, _armed
    _session.close()
    for undo in reversed(_undo):
        try:
            undo()
        except Exception as error:  # the fence around the training
            _session.fault("step", error)
    _undo.clear()
    _installed = _armed = False


def step(number: int | None = None) -> None:
    """Marks the end of a training step, for loops whose optimizer steps the hooks cannot see. Never raises.

    After the first call, optimizer steps no longer count as steps. ``number`` is the number of the step that ends, from
    1. With it, whyidle knows exactly which steps a restarted run repeats.
    """
    try:
        if _session.asleep:
            _session.wake(trains=True)
        _session.loop.step_ends(number)
    except Exception as error:  # the fence around the training
        _session.fault("step", error)


def share(total: int, *, own_data: bool = False) -> Share:
    """This rank's part of ``total`` microbatches or samples, in the step that begins. Never raises, never waits.

    Every rank calls it once per step, with the same total, after ``init_process_group``. The counts of all ranks add up
    to the total. They are equal at first, and as long as the ranks cannot be compared: ``Share.reason`` says why. If
    some rank needs more time for its own work, the ranks agree on a step from which on it gets less.

    ``own_data``: each rank of the world has its own data, although the run has smaller groups, as hybrid sharding does.
    Without it such a run keeps equal shares, because tensor parallelism and pipelines need the same count on all ranks.
    """
    from .shares.share import share as share_of  # imported here, so that `attach` alone does not pay for the import

    return share_of(_session, total, own_data, raise_failure)


class phase:
    """``with whyidle.phase(name):`` marks a phase of the loop that the hooks cannot see.

    ``name`` is one of compute, eval, rollout, host, logging, data, checkpoint, restore. An unknown name is ignored, and
    logged once to stderr.
    """

    __slots__ = ("_index", "_meter", "_old", "_own", "_save")

    def __init__(self, name: str):
        self._old = NOT_ENTERED
        self._own: OwnTask | None = None
        self._meter: Splitter | None = None
        self._save: OpenCall | None = None
        self._index = PHASE[name] if name in USER_PHASES else -1
        if self._index < 0 and name not in _warned:
            _warned.add(name)
            say(f"phase {name!r} is not a phase and is ignored: the phases are {', '.join(sorted(USER_PHASES))}")

    def __enter__(self) -> phase:
        if self._index >= 0:
            before = _session.machine.phase
            try:
                self._begins()
            except BaseException as raised:  # of a signal handler: nobody calls `__exit__` then
                if self._old == NOT_ENTERED and _session.machine.phase == self._index != before:
                    _session.machine.leave(before)
                else:
                    self.__exit__(type(raised), raised, None)
                raise
        return self

    def _begins(self) -> None:
        machine = _session.machine
        if self._index in _NAMED:
            self._old = _session.loop.named_begins(self._index)
            return
        if self._index == CHECKPOINT:
            self._save = _session.saves.call_begins(USER_PHASE)
        if self._save is None:
            self._old = machine.enter(self._index)
        if self._index == DATA and self._old != NOT_ENTERED:
            self._meter = _session.fetch_begins()
        if self._index == _LOGGING and self._old != NOT_ENTERED:
            self._own = _session.own_task()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._index in _NAMED:
            _session.loop.named_ends(self._index, self._old)
        elif self._save is not None:
            _session.saves.call_ends(self._save)
        else:
            if self._own is not None:
                self._own.spent()
            if self._meter is not None:
                _session.fetch_ends()
            _session.machine.leave(self._old, self._meter)


def own_ledger() -> tuple[str, bytes] | None:
    """The path and a copy of this rank's ledger; None if this rank is not recorded."""
    writer = _session.writer
    return None if writer is None else (writer.path, writer.copy())


def end() -> None:
    """Runs when the process exits: accounts for everything and ends the ledger. Never raises."""
    _session.close(failed(), interrupted())


if not getattr(sys.modules.get("_whyidle_autoload"), "_started", False):
    # Handlers run in reverse order. Registered at import instead of in attach(), so that the exit handlers of others
    # run before it and their time still counts. The autoload registers it even earlier.
    atexit.register(end)


def _install() -> None:
    global _installed, _registered
    if not _registered:
        _registered = True
        os.register_at_fork(
            before=_session.before_fork,
            after_in_parent=_session.after_fork,
            after_in_child=lambda: _session.after_fork_in_child(_armed),
        )
        if (register := getattr(threading, "_register_atexit", None)) is not None:  # concurrent.futures uses it, too
            with suppress(RuntimeError):  # the main program has already ended
                import concurrent.futures.thread  # noqa: F401  # its handler waits, so ours must come before it

                register(_session.main_ends)
    if _installed or not _torch_is_there():
        return
    _installed = True
    from .hooks import install_all

    _undo.append(watch_exit())
    _undo.append(watch_hard_exit(_session.exits))
    _undo.append(watch_stop(_session.stopped))
    _undo.extend(install_all(_session))


def _torch_is_there() -> bool:
    """Whether torch is installed. The hooks need it, but do not import it into a program that may not use it."""
    if "torch" not in sys.modules:
        import importlib.util

        return importlib.util.find_spec("torch") is not None
    return True


__all__ = ["Share", "arm", "attach", "detach", "own_ledger", "phase", "share", "step"]
