"""Replacing a function in place, once, so that it can be put back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .late_import import forget, when_imported

MARK = "_whyidle_hook"


class NothingToHook(Exception):
    """The target of a hook is not there, or not of the shape that the hook knows."""


class Patches:
    """Replacements made by one hook, in order; ``undo`` puts the originals back.

    A replacement that somebody has wrapped since stays where it is (theirs calls ours): after ``undo`` ours must
    therefore pass straight through, which it does because the session it asks is closed.
    """

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any, bool]] = []
        self._waiting: list[Callable[[ModuleType], None]] = []

    def when_imported(self, name: str, patch: Callable[[ModuleType], None]) -> None:
        """Calls ``patch(module)`` as soon as that module is there; not any more after ``undo``."""
        self._waiting.append(patch)
        when_imported(name, patch)

    def replace(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Sets ``owner.name = make(original)``. Raises NothingToHook if there is no such callable."""
        original = getattr(owner, name, None)
        if not callable(original):
            raise NothingToHook(f"{getattr(owner, '__name__', owner)}.{name}")
        if getattr(original, MARK, False):
            return
        own = name in vars(owner)
        wrapper = functools.wraps(original)(make(original))
        setattr(wrapper, MARK, True)
        raw = vars(owner)[name] if own else original
        setattr(owner, name, wrapper)
        self._done.append((owner, name, raw, wrapper, own))

    def undo(self) -> None:
        for patch in self._waiting:
            forget(patch)
        self._waiting.clear()
        for owner, name, raw, wrapper, own in reversed(self._done):
            if vars(owner).get(name) is not wrapper:
                continue
            if own:
                setattr(owner, name, raw)
            else:
                delattr(owner, name)
        self._done.clear()
