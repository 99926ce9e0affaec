"""What a terminal can show: whether it has colours, and which characters."""

from __future__ import annotations

import codecs
import io
import os
import sys

PLAIN: dict[str, str] = {
    "█": "#",
    "▓": "%",
    "▒": "+",
    "░": ":",
    "▚": "/",
    "▞": "\\",
    "━": "=",
    "╌": "-",
    "·": ".",
    "—": "-",
    "–": "-",
    "−": "-",
    "…": "...",
    "×": "x",
    "±": "+-",
    "∞": "inf",
    "µ": "u",
    "μ": "u",
    "²": "2",
    "√": "sqrt",
}
"""Character of our output -> what is printed where the encoding of the locale does not have it."""


def shows_colours() -> bool:
    """Whether stdout is a terminal that shows colours, and the user wants them (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_anything() -> None:
    """Lets stdout and stderr drop output if they are closed, and replace what their encoding does not have. Otherwise,
    a print would raise an error.
    """
    if sys.stdout is None:  # `>&-`, some daemons: Python then has no object for it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    codecs.register_error("whyidle", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="whyidle")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end
