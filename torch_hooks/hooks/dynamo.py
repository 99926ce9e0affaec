"""Makes Dynamo skip whyidle's own frames.

While a compiled region runs, Dynamo inspects every Python frame that is called from a part that it could not compile,
including whyidle's frames. It would compile them, evaluate ``is_compiling()`` as true in them, and count graph breaks
that the user's code does not have. For functions that Dynamo inlines when it traces the user's code, each hook checks
``is_compiling()`` itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..late_import import forget, when_imported

_PACKAGE = __name__.rpartition(".hooks")[0]


def install_frames() -> Callable[[], None]:
    """Makes Dynamo skip whyidle's frames as soon as it is imported. Does nothing if Dynamo's interface differs."""
    when_imported("torch._dynamo.eval_frame", _hide)
    return lambda: forget(_hide)


_more: list[CodeType] = []


def skip(code: CodeType) -> None:
    """Makes Dynamo skip a frame whose code is not that of a function of a module."""
    _more.append(code)
    skip_code = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    if skip_code is not None:
        skip_code(code)


def _hide(eval_frame: ModuleType) -> None:
    skip_code = getattr(eval_frame, "skip_code", None)  # since torch 2.1
    if skip_code is None:
        return
    for code in _more:
        skip_code(code)
    from .. import accelerators, compiling  # noqa: F401 - loaded later, they would not be skipped

    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGE):
            for code in _codes(list(vars(module).values()), name):
                skip_code(code)


def _codes(values: list[Any], module: str) -> Iterator[CodeType]:
    for value in values:
        if isinstance(value, type) and value.__module__ == module:
            yield from _codes(list(vars(value).values()), module)
        elif isinstance(value, property):
            yield from _codes([value.fget, value.fset], module)
        elif isinstance(value, (staticmethod, classmethod)):
            yield from _codes([value.__func__], module)
        elif isinstance(value, FunctionType) and value.__module__ == module:
            yield from _with_inner(value.__code__)
            yield from _codes([getattr(value, "__wrapped__", None)], module)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
