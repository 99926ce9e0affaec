"""Shows the progress of a command on stderr: a bar on a terminal, otherwise a line from time to time. No
dependencies."""

from __future__ import annotations

import os
import shutil
import sys
import time
from types import TracebackType
from typing import TextIO

_BAR = 32
_REDRAW_SECONDS = 0.1
_LINE_EVERY_SECONDS = 5.0
_ERASE = "\r\x1b[K"


class Lines:
    """Progress for a log, a pipe or a CI job: a line at the start of each part, and one every few seconds."""

    def __init__(self, command: str, file: TextIO):
        self._command, self._file = command, file
        self._part = ""
        self._next = 0.0

    def show(self, part: str, done: float, note: str = "") -> None:
        """Shows that a share ``done`` (0 to 1) of ``part`` is done."""
        now = time.monotonic()
        if part == self._part and now < self._next:
            return
        how_far = f", {100 * done:.0f} %" if part == self._part else ""
        self._part, self._next = part, now + _LINE_EVERY_SECONDS
        note = f" · {note}" if note and how_far else ""
        print(f"whyidle {self._command}: {part}{how_far}{note}", file=self._file, flush=True)

    def close(self) -> None:
        pass

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Bar(Lines):
    """Progress for a terminal: one line that is redrawn, and erased at the end."""

    def show(self, part: str, done: float, note: str = "") -> None:
        now = time.monotonic()
        if part == self._part and now < self._next:
            return
        self._part, self._next = part, now + _REDRAW_SECONDS
        filled = round(_BAR * min(max(done, 0.0), 1.0))
        text = f"{'━' * filled}{'╌' * (_BAR - filled)} {100 * done:3.0f} %  {part}" + (f" · {note}" if note else "")
        width = shutil.get_terminal_size().columns - 1  # a line that wraps cannot be erased
        self._file.write(_ERASE + text[:width])
        self._file.flush()

    def close(self) -> None:
        self._file.write(_ERASE)
        self._file.flush()


def open_progress(command: str) -> Lines:
    """The progress of ``command``, such as `bench storage`. Call close(), or use it as a context manager."""
    file = sys.stderr
    terminal = file.isatty() and os.environ.get("TERM") != "dumb"
    return Bar(command, file) if terminal else Lines(command, file)
