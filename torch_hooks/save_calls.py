"""Finds the function of the program, or of a framework, whose call is a checkpoint: it saves one or several files.

Only names and code objects on the stack are read, no variables. The function is replaced where it is defined, so its
next call is seen from its begin to its return.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from .patching import MARK, NothingToHook, Patches

if TYPE_CHECKING:
    from .session import Session

_SAVES = re.compile("save|checkpoint|ckpt|snapshot|export|dump|persist", re.IGNORECASE)
_MORE = re.compile("eval|valid|test|log", re.IGNORECASE)
"""Functions with such names save and do more than that."""
_LOOPS = re.compile("train|fit|learn|loop|eval|valid|epoch|step|run|main|log|<", re.IGNORECASE)
"""What calls the function that saves has such a name, or one of its own callers has."""
_LATER = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
"""Functions that only begin when they are called: a wrapper would end before they do, and be of another kind."""
_DEEPEST = 24
_MOST = 32
"""The most functions that are replaced."""


class SaveCalls:
    """The functions that are known to save."""

    def __init__(self, session: Session):
        self._session = session
        self._patches = Patches()
        self._known: set[CodeType] = set()
        self.refused: set[CodeType] = set()
        """Those in which the training goes on: their calls do not count."""

    def learn(self, code: CodeType | None, owner: Any) -> None:
        """The function with this ``code``, which ``owner`` has, saves."""
        if code is None or owner is None or code in self._known or len(self._known) >= _MOST:
            return
        self._known.add(code)
        if code.co_flags & _LATER or _is_held(code, owner):
            return
        try:
            self._patches.replace(owner, code.co_name, lambda original: _bracketed(self._session, code, original))
        except NothingToHook:
            return

    def undo(self) -> None:
        self._patches.undo()
        self._known.clear()
        self.refused.clear()


def _is_held(code: CodeType, owner: Any) -> bool:
    """Whether anything but its module refers to a function: another module that has imported it, an object, a list of
    callbacks. That would have the original, which pickle refuses, because the module has the wrapper.

    Each call of the function that goes on in this thread has a reference, too. To ask the garbage collector for the
    referrers would take as long as a full collection.
    """
    if not isinstance(owner, ModuleType):
        return False
    function = vars(owner).get(code.co_name)

    def own() -> None:
        """Has the references that a local variable and an argument have, and no other one."""

    frame, calls = sys._getframe(), 0
    while frame is not None:
        calls += frame.f_code is code
        frame = frame.f_back
    return function is None or sys.getrefcount(function) > sys.getrefcount(own) + 1 + calls


def _bracketed(session: Session, code: CodeType, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        one = session.saves.call_begins(code)
        if one is None:
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            session.saves.call_ends(one)

    return call


def saving_call(frame: FrameType | None) -> tuple[CodeType | None, Any]:
    """The outermost function on a stack that saves, and the module or class that has it; (None, None): there is none.

    ``frame``: where a file is saved.
    """
    found: tuple[CodeType | None, Any] = (None, None)
    for _ in range(_DEEPEST):
        if frame is None:
            break
        code, names = frame.f_code, frame.f_globals
        module = str(names.get("__name__", ""))
        if not module.startswith(("torch.", "whyidle.")):
            if _SAVES.search(code.co_name):
                if not _MORE.search(code.co_name) and (owner := _owner_of(code, names, module)) is not None:
                    found = code, owner
            elif _LOOPS.search(code.co_name):
                break
        frame = frame.f_back
    return found


def _owner_of(code: CodeType, names: dict[str, Any], module: str) -> Any:
    """Where the function is defined; None for nested functions, and for what is not a plain function there."""
    if _is(names.get(code.co_name), code):
        found = sys.modules.get(module)
        return found if found is not None and vars(found) is names else None
    for value in [*names.values()]:
        if isinstance(value, type) and _is(vars(value).get(code.co_name), code):
            return value
    return None


def _is(function: Any, code: CodeType) -> bool:
    return isinstance(function, FunctionType) and function.__code__ is code and not hasattr(function, MARK)
