"""Runs something as soon as a module has been imported, without importing it ourselves.

    when_imported("torch.distributed.fsdp", install)

A hook on a module that the training may never load must not load it either. A finder at the front of ``sys.meta_path``
lets the finders behind it look for the module, and shadows ``exec_module`` on the very loader that they found, for this
one execution. So the module, its spec and its loader are those that Python would have had without us.

This file is also loaded by itself, at the start of every Python process below ``whyidle run``: it imports nothing
that a bare interpreter has not loaded already (hence the quoted types), and takes no lock that a fork could leave held.
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
"""Who waits for what, oldest first. To pop a key is to win the right, and the duty, to run it."""

_NOTHING = object()


def when_imported(name: str, do: "Do") -> None:
    """Calls ``do(module)`` now if the module is there, else right after its execution has finished. Never raises.

    Until it has run, asking again for the same pair changes nothing. An import that fails leaves it waiting. What
    ``do`` raises is swallowed (with ``WHYIDLE_DEBUG=1``, one line on stderr). A module that has no execution of its own
    to watch, or that was half imported when this was called, is noticed with the next import of anything.
    """
    _waiting[name, do] = None
    _place_finder()
    module = _ready(name)
    if module is not None:
        _run(name, do, module)


def forget(do: "Do") -> None:
    """``do`` waits for nothing any more."""
    for key in list(_waiting):
        if key[1] == do:
            _waiting.pop(key, None)


def _ready(name: str) -> "Any":
    """The module, or None while it is not imported, still executes, or is lazy and has not been touched."""
    module = sys.modules.get(name)
    if module is None or type(module).__name__ == "_LazyModule":  # a look at its attributes would load it
        return None
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


def _run(name: str, do: "Do", module: "ModuleType") -> None:
    if _waiting.pop((name, do), _NOTHING) is _NOTHING:
        return  # another thread was first
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
    # It stays there for good: an entry that leaves the list while another thread's import walks it makes that import
    # miss the finder behind. Idle, it costs a tenth of a microsecond per import.
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder:
    """Finds nothing by itself: asks the finders behind it, as Python would have done without it."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        found = False
        for waited, do in list(_waiting):
            if waited == name:
                found = True
            elif (module := _ready(waited)) is not None:  # it came by a way that we do not watch
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
    """Stands in for one loader's ``exec_module`` and tells when it is through."""

    def __init__(self, loader: "Any", inner: "Callable[[ModuleType], None]", former: "Any", own: bool):
        self.loader = loader
        self.inner = inner
        self.former = former  # what stood in the loader's own __dict__ before, or _NOTHING
        self.own = own  # this loader loads one module; others (zipimporter) serve many and stay watched
        self.finder = _finder

    def __call__(self, module: "ModuleType") -> None:
        if self.own:
            self.restore()
        name = module.__name__ if module.__spec__ is None else module.__spec__.name
        self.inner(module)
        if type(self.loader).__name__ != "LazyLoader":  # of importlib.util: it has put the execution off
            _run_all(name, sys.modules.get(name, module))  # the module may have put another in its place

    def restore(self) -> None:
        held = self.loader.__dict__
        if held.get("exec_module") is not self:
            return  # somebody stands on top of us: we only pass through
        if self.former is _NOTHING:
            del self.loader.exec_module
        else:
            self.loader.exec_module = self.former


def _watch(loader: "Any", name: str) -> None:
    """Shadows ``loader.exec_module``, where that is possible: not for a namespace, or what is built in or frozen."""
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
