"""How this process ends: whether an exception that nothing caught ends it."""

from __future__ import annotations

import sys


def failed() -> bool:
    """Whether an exception ends this process. For exit handlers, and finalizers of multiprocessing. Never raises.

    The interpreter stores an uncaught exception before it runs exit handlers. A finalizer of multiprocessing runs while
    the exception is on its way. KeyboardInterrupt is not a failure: somebody has stopped the program. The status of
    ``sys.exit(1)`` is only visible in a child of multiprocessing, which also exits like this after an exception.
    """
    error = sys.exc_info()[1]
    if error is None:
        error = _uncaught()
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    return error is not None and not isinstance(error, KeyboardInterrupt)


def _uncaught() -> BaseException | None:
    """The exception that ended the main program; None if there is none."""
    trace = getattr(sys, "last_traceback", None)
    # At a prompt or in a notebook, an exception ends one command and not the process. Somebody who embeds Python may
    # have printed an exception of a callback, whose outermost frame has a caller.
    if hasattr(sys, "ps1") or trace is None or trace.tb_frame.f_back is not None:
        return None
    return getattr(sys, "last_value", None)
