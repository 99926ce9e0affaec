"""What a report says of what to change: the section for people, and the entries for programs."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from ..advisor.advice.rule import Advice

SHOWN = 5
WIDTH = 110


def entries(found: Sequence[Advice]) -> list[dict[str, Any]]:
    """As JSON, the change that is worth most first."""
    return [
        {
            "id": one.id,
            "families": list(one.families),
            "change": one.change,
            "settings": dict(one.settings),
            "share": one.gain.share,
            "least": one.gain.least,
            "most": one.gain.most,
            "how": one.gain.how,
            "gpu_hours": one.gpu_hours,
            "money": one.money,
            "evidence": list(one.evidence),
            "check": one.check,
            "tested": one.tested,
        }
        for one in found
    ]


def render(found: Sequence[dict[str, Any]], unit: str, currency: str) -> list[str]:
    """Lines for a terminal. ``unit``: GPU-hours or rank-hours."""
    if not found:
        return []
    lines = [f"What to change (gain in time; of {unit} so far; the changes do not add up)"]
    for place, one in enumerate(found[:SHOWN], 1):
        money = f" {currency}{one['money']:,.2f}" if one["money"] is not None else ""
        bounds = f"{100 * one['least']:.0f} to {100 * one['most']:.0f} %"
        head = f"{place}. saves {100 * one['share']:.0f} % ({bounds}), {one['gpu_hours']:.3g} {unit}{money}"
        lines.append(f"{head} · {one['id']}{'' if one['tested'] else ' · not tested'}")
        lines += _indented(f"{one['change']}.")
        for sentence in one["evidence"]:
            lines += _indented(f"because {sentence}")
        lines += _indented(f"check: {one['check']}")
    if len(found) > SHOWN:
        lines.append(f"({len(found) - SHOWN} more with --json)")
    return lines


def _indented(sentence: str) -> list[str]:
    return wrap(sentence, WIDTH, initial_indent="   ", subsequent_indent="   ")
