"""Advice for people and programs: the section of a report, its JSON, and the advice that an agent exports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..advisor.advice.case import case_of
from ..advisor.advice.rule import HERE, Advice
from ..advisor.advice.table import advise
from ..agent.collector import Advised
from ..ledger.directory import drop_duplicates, ledger_paths, run_of
from ..ledger.reader import Ledger, LedgerError, read_ledger
from ..verdict.report import runs
from . import counters
from .tables import indented

SHOWN = 5
MOST_RUNS = 16
KEPT_STEPS = 64
"""The steps per rank that an agent reads for advice, once a minute. The number keeps its memory small."""


def entries(found: Sequence[Advice]) -> list[dict[str, Any]]:
    """Advice as JSON. The change with the largest gain comes first."""
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
            "untold": one.gain.untold,
            "gpu_hours": one.gpu_hours,
            "money": one.money,
            "evidence": list(one.evidence),
            "check": one.check,
            "tested": one.tested,
            "tried": one.tried,
        }
        for one in found
    ]


def render(found: Sequence[dict[str, Any]], unit: str, currency: str) -> list[str]:
    """Advice as lines for a terminal. ``unit``: GPU-hours or rank-hours."""
    if not found:
        return []
    lines = [f"What to change (gain in time; of {unit} so far; the changes do not add up)"]
    for place, one in enumerate(found[:SHOWN], 1):
        money = f" {currency}{one['money']:,.2f}" if one["money"] is not None else ""
        gain = f"{100 * one['share']:.0f} % ({100 * one['least']:.0f} to {100 * one['most']:.0f} %)"
        if one["untold"]:
            gain = f"up to {100 * one['most']:.0f} %, or nothing"
        head = f"{place}. saves {gain}, {one['gpu_hours']:.3g} {unit}{money}"
        lines.append(f"{head} · {one['id']}")
        lines += indented(f"{one['change']}.")
        for sentence in one["evidence"]:
            lines += indented(f"because {sentence}")
        lines += indented(f"check: {one['check']}")
        if one["tried"] != HERE:
            lines += indented(f"tried: {one['tried']}")
    if len(found) > SHOWN:
        lines.append(f"({len(found) - SHOWN} more with --json)")
    return lines


def of_directory(directory: str) -> list[Advised]:
    """Advice for the newest live runs of a directory, for an agent to export."""
    ledgers = _ledgers(directory)
    live = {run_of(ledger) for ledger in ledgers if ledger.alive}
    found = []
    for run in [run for run in runs(ledgers) if run in live][:MOST_RUNS]:
        mine = [ledger for ledger in ledgers if run_of(ledger) == run]
        case = case_of(run, mine, time.monotonic_ns(), counters.of_node(run, mine), most_steps=KEPT_STEPS * len(mine))
        found += [Advised(*run, one.id, one.families[0], one.change, one.gain.expected) for one in advise(case)]
    return found


def _ledgers(directory: str) -> list[Ledger]:
    """The ledgers of a directory, each with its last steps only, because whole rings take too much memory."""
    found: list[Ledger] = []
    try:
        for path in ledger_paths(directory):
            try:
                one = read_ledger(path, steps=True)
            except LedgerError:  # the collector `ranks` counts these
                continue
            one.ring = one.ring[-KEPT_STEPS:]
            first = one.ring[0].number - one.base_step if one.ring else 0
            one.calls = [call for call in one.calls if call.step >= first]
            found.append(one)
    except LedgerError:  # there are more ledgers than are read
        pass
    return drop_duplicates(found)[0]
