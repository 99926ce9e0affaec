"""The public API: attach, detach, phase, step."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from types import TracebackType

from ..ledger.causes import PHASE, USER_PHASES
from .machine import CHECKPOINT, NOT_ENTERED
from .meters.save import SaveMeter
from .notices import say
from .session import Session

_session = Session()
_undo: list[Callable[[], None]] = []
_installed = False
_armed = False
_registered = False
_warned: set[str] = set()
_EVAL = PHASE["eval"]


def attach() -> bool:
    """Starts recording this rank; call it once, anywhere before the loop. Idempotent, and it never raises.

    No agent, GPU or process group need be there. Returns whether the rank is being recorded: not with ``WHYIDLE=0`` in
    the environment, nor where no ledger can be created (which it says, once, on stderr).
    """
    try:
        if os.environ.get("WHYIDLE") == "0":
            return False
        if _session.writer is not None:
            return True
        _install()
        _session.asleep = True
        return _session.wake()
    except Exception as error:  # the fence around the training
        say(f"not attached: {error}")
        return False


def arm() -> bool:
    """Puts the hooks in place and records from the first sign of training on: what ``whyidle run`` does.

    A process that never trains (a launcher, a data-loading worker) thus leaves no ledger. Never raises.
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
    """Ends the recording and puts every original back. Idempotent, and it never raises."""
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
    """Says that a training step ends here, where no optimizer step can be seen. Never raises.

    From the first call on optimizer steps are no longer counted. ``number`` is the step's own number, from 1: with it
    the steps that a restarted run repeats are known exactly.
    """
    try:
        if _session.asleep:
            _session.wake()
        _session.loop.step_ends(number)
    except Exception as error:  # the fence around the training
        _session.fault("step", error)


class phase:
    """``with whyidle.phase(name):`` says what the loop is doing, where the hooks cannot see it.

    ``name`` is one of compute, eval, host, data, checkpoint, restore. An unknown name is reported once and ignored.
    """

    __slots__ = ("_begun", "_index", "_old")

    def __init__(self, name: str):
        self._old = NOT_ENTERED
        self._begun = (0, 0)
        self._index = PHASE[name] if name in USER_PHASES else -1
        if self._index < 0 and name not in _warned:
            _warned.add(name)
            say(f"phase {name!r} is not a phase and is ignored: the phases are {', '.join(sorted(USER_PHASES))}")

    def __enter__(self) -> phase:
        if self._index >= 0:
            machine = _session.machine
            if self._index == CHECKPOINT:
                self._old = machine.enter_save(SaveMeter(_session.task))
            if self._old == NOT_ENTERED:
                self._old = machine.enter(self._index)
            if self._index == _EVAL and self._old != NOT_ENTERED:
                self._begun = _session.loop.evaluation_begins()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._index == CHECKPOINT:
            _session.machine.leave_save(self._old)
        else:
            _session.machine.leave(self._old)
        if self._index == _EVAL and self._old != NOT_ENTERED:
            _session.loop.evaluation_ends(self._begun)


def own_ledger() -> tuple[str, bytes] | None:
    """The path and a copy of this rank's ledger; None where it is not recorded."""
    writer = _session.writer
    return None if writer is None else (writer.path, writer.copy())


def end() -> None:
    """The process exits: accounts for everything and ends the ledger. Never raises."""
    _session.close()


if not getattr(sys.modules.get("_whyidle_autoload"), "_started", False):
    # At import, not at attach(): the first to register is the last to run, so that what others do at exit still counts.
    atexit.register(end)  # else the autoload has registered it, earlier still


def _install() -> None:
    global _installed, _registered
    if not _registered:
        _registered = True
        os.register_at_fork(
            before=_session.before_fork,
            after_in_parent=_session.after_fork,
            after_in_child=lambda: _session.after_fork_in_child(_armed),
        )
    if _installed or not _torch_is_there():
        return
    _installed = True
    from .hooks import install_all

    _undo.extend(install_all(_session))


def _torch_is_there() -> bool:
    """Hooks need torch; importing it here would be a surprise to a program that does not."""
    if "torch" not in sys.modules:
        import importlib.util

        return importlib.util.find_spec("torch") is not None
    return True


__all__ = ["arm", "attach", "detach", "own_ledger", "phase", "step"]
