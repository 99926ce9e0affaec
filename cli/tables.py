"""Tables and wrapped sentences on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap

WIDTH = 110
"""Of wrapped sentences, in characters."""
NOTE = 9
"""Characters that the label of a note takes, with its spaces."""


def aligned(rows: Sequence[Sequence[str]], left: int = 0, *, last_left: bool = False) -> list[str]:
    """Columns as wide as their widest cell, flush right but for the first ``left`` of them and, if asked, the last."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if at < left or (last_left and at == len(widths) - 1) else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("   ".join(cells).rstrip())
    return lines


def notes(sentences: Iterable[str]) -> list[str]:
    """Lines of sentences that begin with a label of NOTE characters (`note     …`), wrapped to the right of it."""
    return [line for sentence in sentences for line in wrap(sentence, WIDTH, subsequent_indent=" " * NOTE)]


def indented(sentence: str) -> list[str]:
    """Lines of a sentence below a numbered head."""
    return wrap(sentence, WIDTH, initial_indent="   ", subsequent_indent="   ")
