"""Finds which framework runs the loop, and by which names its program takes options.

The stack of the first step tells the framework, because a framework may be imported and not used. Of the stack only the
names of modules are read. The names of options are those of the command line, and those of an `argparse` parser that
is a variable of the program's main module.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ..ledger.programs import FRAMEWORKS, SUBCLASSES, concept_of, options_in

_DEEPEST = 200
_MOST_WORDS = 1000
"""Longer command lines are lists of files."""


def framework(frame: FrameType | None) -> str:
    """The framework that runs the loop with this frame; empty if the table has none."""
    found = {module.partition(".")[0] for module in _modules(frame)}
    for name, packages in FRAMEWORKS.items():
        if found.isdisjoint(packages):
            continue
        return next((more for module, more in SUBCLASSES.get(name, {}).items() if module in sys.modules), name)
    return ""


def _modules(frame: FrameType | None) -> Iterator[str]:
    for _ in range(_DEEPEST):
        if frame is None:
            return
        name = frame.f_globals.get("__name__")
        if name == "__main__":
            name = getattr(frame.f_globals.get("__spec__"), "name", name)  # `python -m`
        if isinstance(name, str):
            yield name
        frame = frame.f_back


def options() -> Iterator[str]:
    """The options of this program that are in the table. Those of the command line come first."""
    yield from options_in(sys.argv[1:_MOST_WORDS])
    parser_type: Any = getattr(sys.modules.get("argparse"), "ArgumentParser", None)
    if parser_type is None:
        return
    for value in list(vars(sys.modules["__main__"]).values()):
        if isinstance(value, parser_type):
            # From long to short: a program with `-j` and `--workers` is told the second.
            yield from sorted(filter(concept_of, getattr(value, "_option_string_actions", ())), key=len, reverse=True)
