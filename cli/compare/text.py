"""Prints the tables of `whyidle compare` as aligned text or as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable

from ...advisor.compare.comparison import Comparison, Pair, Row
from ...advisor.compare.conditions import EFFICIENCY, SPEEDUP, Judged
from ...advisor.statistics import CONFIDENCE, Interval
from ...verdict.ends import counted
from ..quantities import in_time, percent
from ..scaling import scaling_notes, scaling_tables
from ..tables import NONE, Table, aligned, padded, times

_RANGE = f"{percent(CONFIDENCE)} interval"


def tables(comparison: Comparison) -> list[Table]:
    found = []
    for pair in comparison.pairs:
        found += [_measures(comparison, pair), _families(comparison, pair)]
    if comparison.scaling:
        found += scaling_tables(comparison.scaling)
    return found


def runs_of(comparison: Comparison) -> list[list[str]]:
    """One row for each run: its name, its size, and its verdict."""
    return [
        [
            one.name,
            f"run {one.run}",
            f"{one.ranks} rank{'' if one.ranks == 1 else 's'}",
            counted(one.steps, "step"),
            f"{seconds(one.seconds_per_step)} a step",
            one.verdict or "no verdict",
        ]
        for one in comparison.runs
    ]


def _measures(comparison: Comparison, pair: Pair) -> Table:
    first = comparison.runs[0].name
    header = ["", first, pair.name, "speed-up", _RANGE, ""]
    rows = [
        [
            row.label if row.name != "end" else f"{row.label}, {comparison.steps} steps",
            seconds(row.before),
            seconds(row.after),
            times(row.speedup),
            between(row.speedup_interval, times),
            row.finding,
        ]
        for row in pair.rows
        if row.before is not None or row.after is not None
    ]
    return Table(f"{pair.name} against {first}", header, rows, (0, 5))


def _families(comparison: Comparison, pair: Pair) -> Table:
    first = comparison.runs[0].name
    header = ["seconds of a step", first, pair.name, "difference", _RANGE, "part of it", ""]
    whole = pair.whole.difference or 0.0
    rows = [_family(row, whole) for row in sorted(pair.families, key=lambda row: -abs(row.difference or 0.0))]
    return Table("where it comes from", header, [*rows, _family(pair.whole, whole)], (0, 6))


def _family(row: Row, whole: float) -> list[str]:
    part = percent(round((row.difference or 0.0) / whole, 3) + 0.0) if whole else NONE
    return [
        row.label,
        seconds(row.before),
        seconds(row.after),
        _signed(row.difference),
        between(row.difference_interval, _signed),
        part,
        row.finding,
    ]


def notes(comparison: Comparison) -> list[str]:
    said = list(comparison.notes)
    if comparison.scaling:
        said += scaling_notes(comparison.scaling)
    return said


def render_text(comparison: Comparison, judged: list[Judged]) -> str:
    """The comparison for a terminal. Ends with a newline."""
    names = max(len(one.name) for one in comparison.runs)
    parts = [[f"{row[0]:<{names}}  {' · '.join(row[1:])}" for row in runs_of(comparison)]]
    for table in tables(comparison):
        lines = aligned(padded(table), left=1)
        parts.append([table.title, *lines] if table.title != lines[0] else lines)
    parts.append([f"note  {note}" for note in notes(comparison)])
    parts.append([f"check {sentence(one)}" for one in judged])
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def render_markdown(comparison: Comparison, judged: list[Judged]) -> str:
    lines = []
    for row in runs_of(comparison):
        lines.append(f"- **{_cell(row[0])}**: {_cell(' · '.join(row[1:]))}")
    for table in tables(comparison):
        lines += ["", f"**{_cell(table.title)}**", "", *markdown_table(table)]
    lines += ["", *(f"- {_cell(note)}" for note in notes(comparison))] if notes(comparison) else []
    lines += ["", *(f"- {'**fails**: ' if one.met else ''}{_cell(sentence(one))}" for one in judged)] if judged else []
    return "\n".join(lines) + "\n"


def markdown_table(table: Table) -> list[str]:
    rule = ["---" if at in table.left else "--:" for at in range(len(table.header))]
    cells = [table.header, rule, *table.rows]
    return ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in cells]


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def sentence(one: Judged) -> str:
    """A sentence about the result of a condition."""
    said = f"{one.condition}: {one.run} has {_value(one)}"
    if one.untold:
        return f"{said}, which may be chance"
    return f"{said}, {'which meets the condition' if one.met else 'which does not meet the condition'}"


def _value(one: Judged) -> str:
    if math.isinf(one.value):
        return "some, while the first run has none"
    if "%" in one.condition:
        return f"{'+' if one.value > 0 and EFFICIENCY not in one.condition else ''}{percent(one.value, 1)}"
    if one.condition.startswith(SPEEDUP):
        return f"{one.value:.2f}"
    return seconds(one.value)


def seconds(value: float | None) -> str:
    if value is None:
        return NONE
    if abs(value) < 5e-8:
        return "0"
    return f"-{in_time(-value)}" if value < 0 else in_time(value)


def _signed(value: float | None) -> str:
    if value is None:
        return NONE
    return f"+{seconds(value)}" if value >= 5e-8 else seconds(value)


def between(interval: Interval | None, write: Callable[[float], str]) -> str:
    return NONE if interval is None else f"{write(interval[0])} to {write(interval[1])}"
