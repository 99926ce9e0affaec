"""A notebook, or another shell of IPython: between two cells it waits for its user.

IPython tells when a cell begins and ends. It is never imported here: without it, no shell runs in this process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..ledger.causes import PHASE
from .machine import NOT_ENTERED

if TYPE_CHECKING:
    from .session import Session

_INTERACTIVE = PHASE["interactive"]
_SESSION_NAME = "JPY_SESSION_NAME"


class _Cells:
    """The callbacks of one session."""

    def __init__(self, session: Session):
        self._session = session
        self._machine = session.machine
        self._old = NOT_ENTERED

    def ended(self, result: Any) -> None:
        """A cell has ended, perhaps with an error."""
        try:
            if self._session.machine is self._machine:
                self._old = self._machine.enter(_INTERACTIVE)
        except Exception as error:  # the fence around the training
            self._session.fault("step", error)

    def begins(self, info: Any) -> None:
        try:
            old, self._old = self._old, NOT_ENTERED
            if self._session.machine is self._machine:
                self._machine.leave(old)
        except Exception as error:  # the fence around the training
            self._session.fault("step", error)


def watch(session: Session) -> Callable[[], None]:
    """Records the time between cells from now on, if a shell of IPython runs here. Returns what undoes it.

    Never raises. The calling thread is the training thread.
    """
    try:
        events = _shell().events
        cells = _Cells(session)
        told = (("post_run_cell", cells.ended), ("pre_run_cell", cells.begins))
        for event, callback in told:
            events.register(event, callback)
    except Exception:  # there is no shell, or not one that tells
        return lambda: None

    def undo() -> None:
        cells.begins(None)
        for event, callback in told:
            try:
                events.unregister(event, callback)
            except Exception:  # the user has removed it
                pass

    return undo


def _shell() -> Any:
    return sys.modules["IPython"].get_ipython()


def name_of_notebook(env: Mapping[str, str], program: str) -> str:
    """The name of the notebook, without its directory and ending; empty if this process is not its kernel.

    ``program``: the first word of the command line. A kernel's children have the variable, too, but another program.
    Jupyter Server sets the variable to the notebook's path.
    """
    words = program.split(os.sep)
    kernel = words[-1].endswith(("kernel_launcher.py", "kernel_launcher")) or "ipykernel" in words
    return os.path.splitext(os.path.basename(env.get(_SESSION_NAME, "").strip()))[0] if kernel else ""
