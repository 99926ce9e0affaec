"""Prints the bounds that `whyidle whatif` gives for a run without ledgers here."""

from __future__ import annotations

from typing import Any

from ..advisor.whatif.bounds import Spent, answer
from ..advisor.whatif.changes import Changes
from ..ledger.directory import Run
from . import tables
from .choice import name_of
from .quantities import hours_of, in_time, percent

BAR = 30
WHY = (
    "{source} has no steps that could be replayed. These are bounds, not predictions. Perhaps nothing is saved: the"
    " part that becomes faster may be hidden behind another. More than `at most` cannot be saved: time that a"
    " change does not touch stays, and a part that is K times faster does not make a step shorter than 1/K. With the"
    " ledgers of all ranks (--dir), `whyidle whatif` predicts"
)


def build(
    run: Run,
    spent: Spent,
    changes: Changes,
    *,
    source: str,
    accelerated: bool,
    price: float,
    currency: str,
    swept: bool,
    notes: list[str],
) -> dict[str, Any]:
    """The report as JSON. Raises NoBounds."""
    found = answer(spent, changes, swept=swept)
    hours = spent.whole / 3600
    for row in [*found["changes"], *([found["together"]] if found["together"] else [])]:
        row["gpu_hours_most"] = row["most"] * hours
        row["money_most"] = row["most"] * hours * price if price else None
    return {
        "owner": run[0],
        "run": run[1],
        "bounds_only": True,
        **found,
        "accelerated": accelerated,
        "gpu_hours": hours,
        "price": price or None,
        "currency": currency,
        "why": WHY.format(source=source),
        "notes": notes,
    }


def render(found: dict[str, Any]) -> str:
    """The report for people. Ends with a newline."""
    parts = [_title(found), _table(found), _curve(found["sweep"]) if found["sweep"] else [], _notes(found)]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _title(found: dict[str, Any]) -> list[str]:
    ranks = f"{found['ranks']} rank{'' if found['ranks'] == 1 else 's'}"
    hours = f"{found['gpu_hours']:.3g} {hours_of(found['accelerated'])}"
    return [
        f"run {name_of((found['owner'], found['run']))} · {ranks} · {found['steps']} steps"
        f" · {in_time(found['step_seconds'])} a step · {hours} · bounds only"
    ]


def _table(found: dict[str, Any]) -> list[str]:
    money = found["price"] is not None
    unit = f"{hours_of(found['accelerated'])}, at most"
    header = ["a step takes at least", "saves at least", "at most", unit, *(["money"] if money else []), "with"]
    rows = [*found["changes"], *([found["together"]] if found["together"] else [])]
    cells = [
        [
            in_time(row["step_seconds"]),
            percent(row["least"], 1),
            percent(row["most"], 1),
            f"{row['gpu_hours_most']:.3g}",
            *([f"{found['currency']}{row['money_most']:,.2f}"] if money else []),
            row["options"],
        ]
        for row in rows
    ]
    return tables.aligned([header, *cells], last_left=True)


def _curve(sweep: dict[str, Any]) -> list[str]:
    most = max(1e-9, *(point["most"] for point in sweep["points"]))
    lines = [f"{' '.join(sweep['options'])} by its factor, and what is saved at most"]
    for point in sweep["points"]:
        bar = "█" * round(BAR * point["most"] / most)
        lines.append(f"{point['factor']:>6}   {percent(point['most'], 1):>7}   {bar}".rstrip())
    if sweep["flat_from"]:
        lines.append(f"flat from {sweep['flat_from']} on: nine tenths of the bound")
    return lines


def _notes(found: dict[str, Any]) -> list[str]:
    return tables.notes([f"why      {found['why']}.", *(f"note     {one}" for one in found["notes"])])
