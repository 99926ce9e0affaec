"""Tables and wrapped sentences on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import NamedTuple

NONE = "–"
WIDTH = 110
"""The characters in a line of wrapped sentences."""
NOTE = 9
"""The characters of a note's label, with the spaces after it."""


class Table(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]
    left: tuple[int, ...]
    """The indexes of columns with words. All other columns have numbers."""


def padded(table: Table) -> list[list[str]]:
    """The rows of a table, with words in the last column padded, because `aligned` aligns only first columns left."""
    rows = [table.header, *table.rows]
    last = len(table.header) - 1
    if last not in table.left:
        return rows
    width = max(len(row[last]) for row in rows)
    return [[*row[:last], row[last].ljust(width)] for row in rows]


def times(value: float | None) -> str:
    if value is None:
        return NONE
    if math.isinf(value):
        return "∞"
    return f"{value:.2f}×" if value < 9.995 else f"{value:.1f}×" if value < 99.95 else f"{value:.0f}×"


def aligned(rows: Sequence[Sequence[str]], left: int = 0, *, last_left: bool = False) -> list[str]:
    """The lines of a table. Columns are as wide as their widest cell and aligned right, except the first ``left`` ones.

    ``last_left``: align the last column left, too.
    """
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
    """Wraps sentences that begin with a label of NOTE characters (`note     …`). Later lines begin after the label."""
    return [line for sentence in sentences for line in wrap(sentence, WIDTH, subsequent_indent=" " * NOTE)]


def indented(sentence: str) -> list[str]:
    """Wraps a sentence below a numbered heading, indented by three spaces."""
    return wrap(sentence, WIDTH, initial_indent="   ", subsequent_indent="   ")
