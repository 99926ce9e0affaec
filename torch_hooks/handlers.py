"""Exceptions that signal handlers of the program raise while the training thread is in the hooks' own code.

Python runs a handler between any two instructions of the main thread. The handler may raise: a time limit of the user,
or torch, when a data worker has died. Without the hooks this exception would go to the program, so it has to.
"""

from __future__ import annotations

import types
from inspect import CO_VARARGS
from itertools import pairwise


def pass_on(error: BaseException) -> None:
    """Raises an exception again if a signal handler has raised it."""
    if of_a_handler(error):
        try:
            raise error
        finally:
            del error  # its traceback has this frame


def of_a_handler(error: BaseException) -> bool:
    """Whether a signal handler has raised an exception, and not the code that it has interrupted.

    Python calls a handler with the number of the signal and the frame that it has interrupted. That is also the frame
    from which it is called.
    """
    found = error.__traceback__
    while found is not None:
        if _is_handler(found.tb_frame):
            return True
        found = found.tb_next
    return False


def _is_handler(frame: types.FrameType) -> bool:
    """Whether a number and the frame that has called a function are two of its arguments."""
    code, caller = frame.f_code, frame.f_back
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & CO_VARARGS)
    if caller is None or not count:
        return False
    known = frame.f_locals
    values: list[object] = []
    for name in code.co_varnames[:count]:
        value = known.get(name)
        values += value if type(value) is tuple else (value,)
    return any(type(number) is int and value is caller for number, value in pairwise(values))
