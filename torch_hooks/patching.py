"""Replaces functions in place, once, and restores them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from .late_import import forget, when_imported

MARK = "_whyidle_hook"


class NothingToHook(Exception):
    """The target of a hook does not exist, or differs from what the hook supports."""


def owner_of(cls: type, method: str) -> type:
    """The class from which another one has its method. If that were replaced in the heir, classes between the two would
    lose theirs: with two bases, there may be some."""
    return next((one for one in cls.__mro__ if method in vars(one)), cls)


class Patches:
    """The replacements of one hook, in order; ``undo`` restores the originals.

    If other code has wrapped a replacement since, it stays in place, because that wrapper calls it. After ``undo`` it
    must only call the original. It does, because its session is closed.
    """

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any, bool]] = []
        self._waiting: list[Callable[[ModuleType], None]] = []

    def when_imported(self, name: str, patch: Callable[[ModuleType], None]) -> None:
        """Calls ``patch(module)`` as soon as the module is imported, unless ``undo`` was called before."""
        self._waiting.append(patch)
        when_imported(name, patch)

    def replace(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Sets ``owner.name = make(original)``. Raises NothingToHook if there is no such callable, or if the
        owner forbids to replace it."""
        original = getattr(owner, name, None)
        if not callable(original):
            raise NothingToHook(f"{getattr(owner, '__name__', owner)}.{name}")
        if getattr(original, MARK, False):
            return
        own = name in vars(owner)
        wrapper = functools.wraps(original)(make(original))
        setattr(wrapper, MARK, True)
        raw = vars(owner)[name] if own else original
        try:
            setattr(owner, name, wrapper)
        except Exception as error:  # a class may forbid it
            raise NothingToHook(f"{getattr(owner, '__name__', owner)}.{name}") from error
        self._done.append((owner, name, raw, wrapper, own))

    def replace_in(
        self, owners: Iterable[Any], name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        """The same for several names of one function, which all get the same wrapper: pickle finds a function by its
        module and name, and refuses it if another one is there."""
        once = functools.cache(make)
        for owner in owners:
            self.replace(owner, name, once)

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
