"""Exceptions that signal handlers of the program raise while the training thread is in the hooks' own code.

Python runs a handler between any two instructions of the main thread. The handler may raise: a time limit of the user,
or torch, when a data worker has died. Without the hooks this exception would go to the program, so it has to.
"""

from __future__ import annotations

import functools
import signal
import types


def pass_on(error: BaseException) -> None:
    """Raises an exception again if a signal handler has raised it."""
    if of_a_handler(error):
        try:
            raise error
        finally:
            del error  # its traceback has this frame


def of_a_handler(error: BaseException) -> bool:
    """Whether a signal handler has raised an exception, and not the code that it has interrupted."""
    inside = set[types.CodeType]()
    found = error.__traceback__
    while found is not None:
        inside.add(found.tb_frame.f_code)
        found = found.tb_next
    return any(_code(signal.getsignal(number)) in inside for number in signal.valid_signals())


def _code(handler: object) -> types.CodeType | None:
    """The code of a function, a method, a `partial` or an object that can be called."""
    while isinstance(handler, functools.partial):
        handler = handler.func  # type: ignore[reportUnknownMemberType]
    calls = (vars(each).get("__call__") for each in type(handler).__mro__)
    for one in (handler, getattr(handler, "__func__", None), *calls):
        if isinstance(one, types.FunctionType):
            return one.__code__
    return None
