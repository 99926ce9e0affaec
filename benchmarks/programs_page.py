"""The table of docs/programs.md, from the rows of benchmarks/programs.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accuracy_page import insert

HEAD = (
    "| program | fault | % of the time: clock → whyidle | counts: program → whyidle | verdict | equal | advice |\n"
    "| --- | --- | --- | --- | --- | --- | --- |\n"
)
LEAST_SHARE = 0.01
COUNTS = ("steps", "evaluations", "saves", "bytes")


def line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"| {row['program']} | {row['fault']} | not run: {row['failed']} | | | | |"
    clock, said = row.get("clock", {}), row.get("whyidle", {})
    pairs = [
        f"{name} {100 * clock[name]:.1f} → {100 * said[name]:.1f}"
        for name in clock
        if max(clock[name], said[name]) >= LEAST_SHARE
    ]
    told, counted = row["told"], row["counted"]
    counts = [
        f"{name} {told[name]}" + ("" if told[name] == counted[name] else f" → **{counted[name]}**")
        for name in COUNTS
        if name in told
    ]
    verdict = f"{row['verdict']} {100 * row['share']:.0f} %" if row["verdict"] != "too short" else "too short to judge"
    wrong = "" if row["verdict"] == row["expected"] else f", **not {row['expected']}**"
    equal = "yes" if row["equal"] else "**no**"
    cells = (row["program"], row["fault"], ", ".join(pairs), ", ".join(counts), verdict + wrong, equal, _taken(row))
    return f"| {' | '.join(cells)} |"


def _taken(row: dict[str, Any]) -> str:
    if "taken" not in row:
        return ", ".join(one["id"] for one in row["advice"]) + (": not tried" if row["advice"] else "")
    taken = row["taken"]
    said = next(one for one in row["advice"] if one["id"] == taken["rule"])
    predicted = f"{100 * said['share']:.0f} % ({100 * said['least']:.0f} to {100 * said['most']:.0f} %)"
    return f"{taken['rule']}: {predicted} predicted, {100 * (1 - taken['after'] / taken['before']):.0f} % measured"


def page(path: Path, rows: list[dict[str, Any] | None]) -> None:
    table = HEAD + "\n".join(line(row) for row in rows if row) + "\n"
    path.write_text(insert(path.read_text(), "programs", table))
