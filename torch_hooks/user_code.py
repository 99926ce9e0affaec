"""Finds the training's own code on a Python stack.

It is what belongs neither to Python's standard library nor to an installed package. Only the names of files and
functions and the numbers of lines are read: no arguments, no variables, no values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import NamedTuple

_HERE = os.path.dirname(os.path.abspath(__file__))
_OURS = (_HERE + os.sep, *(os.path.join(os.path.dirname(_HERE), name) + os.sep for name in ("ledger", "linux")))
_INSTALLED = (os.path.dirname(os.__file__) + os.sep, f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_GENERATED = (
    "<frozen ",
    "<eval_with_key>",
    "<__array_function__",
    "<attrs generated",
    "<decorator-gen",
    "<torch_package",
)
"""How the file names of code begin that libraries generate. Other names in angle brackets (``<string>``,
``<ipython-input-3-…>``, ``<stdin>``) are code that the user has typed or executed."""
_PRINTED = re.compile(r'^  File "([^"\n]+)", line (\d{1,9}), in ([\w<>]{1,200})$', re.MULTILINE)
_NESTED = frozenset(("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"))
_DEEPEST = 200
_LIBRARY, _OWN = "", "/"
"""Instead of the name of a file."""
_KEPT = 1024
_files: dict[CodeType, str] = {}
"""The names of the files of code objects that were met, because a look should cost little."""


class Place(NamedTuple):
    """A place in the training's own code."""

    file: str
    """Without its directory."""
    line: int
    function: str
    library: str = ""
    """The package that this line has called and that has not returned; empty if there is none."""
    first_line: int = 0
    """Where the function begins."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


def is_library(path: str) -> bool:
    """Whether code with this file name belongs to the standard library or to an installed package."""
    return path.startswith(_GENERATED) or any(part in path for part in _INSTALLED)


def line_of(frame: FrameType) -> int:
    """The line that a frame is at. Some instructions have none (`co_lines`): the end of a loop, for example. The last
    one before counts."""
    line: int | None = frame.f_lineno
    if line is None:
        code = frame.f_code
        known = [line for start, _, line in code.co_lines() if line is not None and start <= frame.f_lasti]
        line = known[-1] if known else code.co_firstlineno
    return line


def places(frame: FrameType | None) -> Iterator[Place]:
    """The places on a stack, innermost first. A comprehension is at the line of the function that has it."""
    library = inner = None
    for _ in range(_DEEPEST):
        if frame is None:
            break
        code = frame.f_code
        file = _files.get(code)
        if file is None:
            file = _remember(code)
        if file is _LIBRARY:
            library = frame.f_globals
        elif file is not _OWN:
            name = str(library.get("__name__", "")).partition(".")[0] if library is not None else ""
            if inner is not None:
                if any(one is inner[0] for one in code.co_consts):
                    name = name or inner[1].library
                else:
                    yield inner[1]
            place = Place(file, line_of(frame), code.co_name, name, code.co_firstlineno)
            inner = (code, place) if code.co_name in _NESTED else None
            if inner is None:
                yield place
            library = None
        frame = frame.f_back
    if inner is not None:
        yield inner[1]


def stack_of(frame: FrameType | None, most: int) -> Iterator[FrameType]:
    """A frame and those that have called it, the innermost first. ``most``: how many."""
    for _ in range(most):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def called(frame: FrameType | None) -> str:
    """The function of a library that the innermost place has called, such as `queue.Queue.get`, without private
    modules. Empty if there is none in Python."""
    inner = None
    for _ in range(_DEEPEST):
        if frame is None:
            break
        code = frame.f_code
        file = _files.get(code)
        if file is None:
            file = _remember(code)
        if file is _LIBRARY:
            inner = frame
        elif file is not _OWN:
            break
        frame = frame.f_back
    if inner is None:
        return ""
    name = getattr(inner.f_code, "co_qualname", inner.f_code.co_name)  # co_qualname: Python 3.11
    module = [part for part in str(inner.f_globals.get("__name__", "")).split(".") if not part.startswith("_")]
    return ".".join([*module, name])


def innermost(trace: TracebackType | None) -> Place | None:
    """The place of an exception in the training's own code. None if it did not pass any."""
    found = None
    for _ in range(_DEEPEST):
        if trace is None:
            break
        code = trace.tb_frame.f_code
        file = _files.get(code) or _remember(code)
        if file not in (_LIBRARY, _OWN):
            found = Place(file, trace.tb_lineno, code.co_name, first_line=code.co_firstlineno)
        trace = trace.tb_next
    return found


def innermost_in(text: str) -> Place | None:
    """The same for the traceback of another process, as Python prints it."""
    found = [one for one in _PRINTED.findall(text) if not (one[0].startswith(_OURS) or is_library(one[0]))]
    return Place(os.path.basename(found[-1][0]), int(found[-1][1]), found[-1][2]) if found else None


def _remember(code: CodeType) -> str:
    path = code.co_filename
    if len(_files) >= _KEPT:
        _files.clear()
    file = _OWN if path.startswith(_OURS) else _LIBRARY if is_library(path) else os.path.basename(path) or path
    _files[code] = file
    return file
