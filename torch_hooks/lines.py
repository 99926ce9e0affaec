"""At which line of the training's own code the loop is while its device has work.

If it is nearly always the same line, the loop waits for the device there (`.item()`, `synchronize()`), and the device
has no work afterwards. Only the file's name and the number of the line are kept.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import TYPE_CHECKING

from ..ledger.layout import WORD_AT
from .user_code import is_library, line_of

if TYPE_CHECKING:
    from .machine import PhaseMachine

WAITING = frozenset({"synchronize", "item", "tolist", "cpu", "numpy", "wait"})
"""Functions of libraries in which the loop may wait. The line that calls them counts."""
_MOST = 64
"""How many lines are counted. A loop that waits has few."""
_DEEPEST = 32
_BUSY_AT, _LINE_LOOKS_AT = WORD_AT["busy_looks"][0], WORD_AT["line_looks"][0]


class Lines:
    """Counts the lines. Only the watcher thread calls it."""

    def __init__(self, machine: PhaseMachine):
        self._machine = machine
        self._counts: dict[tuple[str, int], int] = {}
        self._most: tuple[str, int] | None = None

    def look(self) -> None:
        """The device has work in compute, and no backward pass runs."""
        words = self._machine.words
        words[_BUSY_AT] += 1
        line = _line_of(sys._current_frames().get(self._machine.owner))
        counts = self._counts
        if line is None or (line not in counts and len(counts) >= _MOST):
            return
        count = counts[line] = counts.get(line, 0) + 1
        if self._most is None or count > counts[self._most]:
            self._most = line
            self._machine.write_string("line", f"{line[0]}:{line[1]}")
        words[_LINE_LOOKS_AT] = counts[self._most]


def _line_of(frame: FrameType | None) -> tuple[str, int] | None:
    """The file's name and the line, if the training's own code calls what does not return; otherwise None."""
    for _ in range(_DEEPEST):
        if frame is None:
            return None
        code = frame.f_code
        if not is_library(code.co_filename):
            return os.path.basename(code.co_filename), line_of(frame)
        if code.co_name not in WAITING:
            return None
        frame = frame.f_back
    return None
