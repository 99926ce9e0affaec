"""How this process ends: whether an exception that nothing caught ends it, or `sys.exit` with a status other than 0,
and whether somebody has asked it to end."""

from __future__ import annotations

import os
import posix
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from .patching import Patches

_FORKING = (("_launch", "multiprocessing.popen_fork"), ("main", "multiprocessing.forkserver"))
"""torch says so in the worker (aten/src/ATen/MapAllocator.cpp) or in the loop (torch/utils/data/dataloader.py)."""
_exited = False
"""Whether a status other than 0 has ended the main program."""


def failed() -> bool:
    """Whether this process fails. For exit handlers, and finalizers of multiprocessing. Never raises.

    The interpreter stores an uncaught exception before it runs exit handlers. A finalizer of multiprocessing runs while
    the exception is on its way, and since Python 3.13 after that: see `_status_of_child`. KeyboardInterrupt is not a
    failure: somebody has stopped the program. The interpreter does not store the status of a SystemExit: see
    `watch_exit`.
    """
    error = last_error()
    if isinstance(error, SystemExit):
        return _is_failure(error)
    if error is None:
        return _exited or _status_of_child() != 0
    return not isinstance(error, KeyboardInterrupt)


def interrupted() -> bool:
    """Whether Ctrl-C ends this process, as `failed`. Not if the program catches that, and exits."""
    return isinstance(last_error(), KeyboardInterrupt)


def last_error() -> BaseException | None:
    """The exception that ends this process; None if there is none. See `failed`."""
    return sys.exc_info()[1] or _uncaught()


def watch_exit() -> Callable[[], None]:
    """Notices when ``sys.exit`` ends the main program with a status other than 0. Returns what undoes this.

    ``raise SystemExit(1)``, and a ``sys.exit`` that the program has imported by name before, are not noticed.
    """
    patches = Patches()
    patches.replace(sys, "exit", _noting)
    return patches.undo


def watch_hard_exit(exits: Callable[[int], None]) -> Callable[[], None]:
    """Calls ``exits`` with the status before ``os._exit`` ends the process, in any thread.

    It must not wait: the program wants to end at once. A ``os._exit`` that the program has imported by name before is
    not noticed. Returns what undoes this.
    """
    patches = Patches()

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _exit(*args: Any, **named: Any) -> Any:
            try:
                status = args[0] if args else named.get("status")
                if isinstance(status, int):
                    exits(status)
            except Exception:  # the fence around the training
                pass
            finally:  # also after Ctrl-C
                original(*args, **named)

        return _exit

    patches.replace_in((os, posix), "_exit", make)
    return patches.undo


def watch_stop(stopped: Callable[[int], Callable[[], None] | None]) -> Callable[[], None]:
    """Calls ``stopped`` with the number of the signal before a SIGTERM handler that is installed from now on, and what
    it returns after that.

    Without such a handler, the kernel ends the process, and no code of it runs. Returns what undoes this.
    """
    patches = Patches()

    def install(original: Callable[..., Any]) -> Callable[..., Any]:
        def set_handler(signalnum: Any, handler: Any) -> Any:
            if signalnum == signal.SIGTERM and callable(handler):
                handler = _Handler(handler, stopped)
            return _plain(original(signalnum, handler))

        return set_handler

    def tell(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda signalnum: _plain(original(signalnum))

    patches.replace(signal, "signal", install)
    patches.replace(signal, "getsignal", tell)
    return patches.undo


class _Handler:
    """A handler of the training, which runs after the signal was noted."""

    def __init__(self, handler: Callable[..., Any], stopped: Callable[[int], Callable[[], None] | None]):
        self.handler, self._stopped = handler, stopped

    def __call__(self, number: int, frame: Any) -> Any:
        over = None
        try:
            over = self._stopped(number)
        except Exception:  # the fence around the training
            pass
        try:
            return self.handler(number, frame)
        finally:
            try:
                if over is not None:
                    over()
            except Exception:  # the fence around the training
                pass


def _plain(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _Handler) else handler


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    def exit(*words: Any, **named: Any) -> Any:
        try:
            return original(*words, **named)
        except SystemExit as error:
            if _is_failure(error):
                error._whyidle = _Note()  # pyright: ignore[reportAttributeAccessIssue]
            raise

    return exit


class _Note:
    """Is destroyed together with its SystemExit, and then knows whether that has ended the main program.

    If no Python function runs at that time, the interpreter itself has caught the exception. Otherwise the program has
    caught it, and goes on.
    """

    def __del__(self) -> None:
        global _exited
        if sys._getframe().f_back is None and threading.get_ident() == threading.main_thread().ident:
            _exited = True

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()  # a copy of the exception is not the exception, and its reader may not have whyidle


def _is_failure(error: SystemExit) -> bool:
    """Whether the status is not 0, unless somebody has stopped the program with Ctrl-C. A text is status 1."""
    good = error.code is None or (isinstance(error.code, int) and error.code == 0)
    return not (good or isinstance(error.__context__, KeyboardInterrupt))


def _status_of_child() -> int:
    """The status with which a forked child of multiprocessing ends; 0 in another process, and before Python 3.13.

    Since then, its finalizers run after the exception was handled and printed. The function that has forked runs them,
    and has the status in `code` (Lib/multiprocessing/popen_fork.py and forkserver.py). KeyboardInterrupt is status 1.
    """
    frame = sys._getframe()
    while frame is not None:
        function, module = frame.f_code.co_name, frame.f_globals.get("__name__")
        if function == "_bootstrap" and module == "multiprocessing.process":
            code = frame.f_locals.get("exitcode")  # not set yet while the exception is on its way
            return code if isinstance(code, int) else 0
        if (function, module) in _FORKING:
            code = frame.f_locals.get("code")
            return code if isinstance(code, int) else 0
        frame = frame.f_back
    return 0


def _uncaught() -> BaseException | None:
    """The exception that ended the main program; None if there is none."""
    trace = getattr(sys, "last_traceback", None)
    # At a prompt or in a notebook, an exception ends one command and not the process. Somebody who embeds Python may
    # have printed an exception of a callback, whose outermost frame has a caller.
    if hasattr(sys, "ps1") or trace is None or trace.tb_frame.f_back is not None:
        return None
    return getattr(sys, "last_value", None)
