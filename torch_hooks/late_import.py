"""Calls a function as soon as a module has been imported, without importing the module itself.

    when_imported("torch.distributed.fsdp", install)

A hook on a module that the training may never import must not import it either. A finder at the front of
``sys.meta_path`` lets the finders after it look for the module. It then replaces ``exec_module`` of the loader that
they found, for this one execution. So the module, its spec and its loader are the same as without whyidle.

This file is also loaded without its package, at the start of every Python process below ``whyidle run``. So it imports
nothing that a bare interpreter has not loaded already (this is why types are quoted), and takes no lock that a fork
could leave held.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Do = Callable[[ModuleType], object]

_waiting: "dict[tuple[str, Do], None]" = {}
"""The pairs (module, function) that wait, oldest first. The thread that pops a key must run the function."""

_NOTHING = object()


def when_imported(name: str, do: "Do") -> None:
    """Calls ``do(module)`` now if the module is imported, otherwise as soon as its execution has finished.

    Until ``do`` has run, another call for the same pair changes nothing. If the import fails, ``do`` keeps waiting.
    Never raises: exceptions of ``do`` are dropped (with ``WHYIDLE_DEBUG=1`` they are logged to stderr). A module whose
    loader cannot be watched, or that was half imported at this call, is noticed at the next import of any new module.
    """
    _waiting[name, do] = None
    _place_finder()
    module = _ready(name)
    if module is not None:
        _run(name, do, module)


def forget(do: "Do") -> None:
    """Cancels all calls of ``do`` that are still waiting."""
    for key in list(_waiting):
        if key[1] == do:
            _waiting.pop(key, None)


def _ready(name: str) -> "Any":
    """The module; None if it is not imported, still executes, or is lazy and not loaded yet."""
    module = sys.modules.get(name)
    if module is None or type(module).__name__ == "_LazyModule":  # reading its attributes would load it
        return None
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


def _run(name: str, do: "Do", module: "ModuleType") -> None:
    if _waiting.pop((name, do), _NOTHING) is _NOTHING:
        return  # another thread runs it
    try:
        do(module)
    except Exception as error:
        import os

        if os.environ.get("WHYIDLE_DEBUG") == "1":
            sys.stderr.write(f"whyidle: after the import of {name}: {error!r}\n")


def _run_all(name: str, module: "ModuleType") -> None:
    for waited, do in list(_waiting):
        if waited == name:
            _run(name, do, module)


def _place_finder() -> None:
    # It is never removed: if an entry leaves the list while another thread's import walks it, that import misses the
    # next finder. When nothing waits, it costs 0.1 µs per import.
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder:
    """Finds nothing itself: asks the finders after it, as Python would do without it."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        found = False
        for waited, do in list(_waiting):
            if waited == name:
                found = True
            elif (module := _ready(waited)) is not None:  # it was imported in a way that is not watched
                _run(waited, do, module)
        return self._find(name, path, target) if found else None

    def _find(self, name: str, path: "Sequence[str] | None", target: "ModuleType | None") -> "ModuleSpec | None":
        finders = list(sys.meta_path)
        if self not in finders:
            return None
        for finder in finders[finders.index(self) + 1 :]:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec is not None else None
            if spec is not None:
                _watch(spec.loader, name)
                return spec
        return None


_finder = _Finder()


class _ExecModule:
    """Replaces ``exec_module`` of one loader, and runs the waiting functions when it has finished."""

    def __init__(self, loader: "Any", inner: "Callable[[ModuleType], None]", former: "Any", own: bool):
        self.loader = loader
        self.inner = inner
        self.former = former  # the previous entry in the loader's own __dict__, or _NOTHING
        self.own = own  # whether this loader loads one module only; those of many (zipimporter) stay watched
        self.finder = _finder

    def __call__(self, module: "ModuleType") -> None:
        if self.own:
            self.restore()
        name = module.__name__ if module.__spec__ is None else module.__spec__.name
        self.inner(module)
        if type(self.loader).__name__ != "LazyLoader":  # importlib.util's LazyLoader has not executed it yet
            _run_all(name, sys.modules.get(name, module))  # the module may have replaced itself in sys.modules

    def restore(self) -> None:
        held = self.loader.__dict__
        if held.get("exec_module") is not self:
            return  # other code has wrapped this one, so it stays and only calls the original
        if self.former is _NOTHING:
            del self.loader.exec_module
        else:
            self.loader.exec_module = self.former


def _watch(loader: "Any", name: str) -> None:
    """Replaces ``loader.exec_module`` if that is possible: not for namespaces, built-in or frozen modules."""
    held = getattr(loader, "__dict__", None)
    if held is None or isinstance(loader, type) or not hasattr(loader, "exec_module"):
        return
    former = hook = held.get("exec_module", _NOTHING)
    while hook is not _NOTHING and hook is not None:
        if getattr(hook, "finder", None) is _finder:
            return
        hook = getattr(hook, "inner", None)
    try:
        loader.exec_module = _ExecModule(loader, loader.exec_module, former, getattr(loader, "name", None) == name)
    except (AttributeError, TypeError):
        return
