"""`whyidle.report()`: the report on the calling process's own run, which draws itself in a notebook.

The training code calls it; hooks never do. It parses a copy of the own ledger, because a process that opens and closes
its own ledger would drop the lock by which others see that it is alive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from ..advisor.signals import other_ranks
from ..dashboards.colours import FAMILY_COLOUR
from ..ledger.causes import CAUSE_FAMILY, FAMILIES
from ..ledger.directory import run_of
from ..ledger.reader import parse_ledger
from ..verdict.report import build_report
from .quantities import percent
from .report import render_text

LEAST_SHARE = 0.0005
"""Smaller causes are not in the table."""
NOT_RECORDED = "this process is not recorded: call whyidle.attach() first, or use `whyidle run`"
_CELL = 'style="text-align:left;padding:.15rem 1rem .15rem 0"'


@dataclass(frozen=True)
class CellReport:
    """A report. ``str()`` gives the text of `whyidle report`."""

    data: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What `whyidle report --json` prints, without advice."""
    reason: str = ""
    """Why there is no report; itself empty if there is one."""

    def __str__(self) -> str:
        return self.reason or render_text(dict(self.data), colour=False)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The sentence, the table of causes and the bar of families. Jupyter calls this."""
        if self.reason:
            return f"<p>whyidle: {escape(self.reason)}</p>"
        return "".join((_sentence(self.data), _bar(self.data), _table(self.data), _remarks(self.data)))


def report(own_ledger: Callable[[], tuple[str, bytes] | None]) -> CellReport:
    """The report on the run of this process: its own ledger, and those of its other ranks on this node. Never raises.

    ``own_ledger`` returns the path and a copy of the calling rank's ledger, or None if the process is not recorded.
    """
    try:
        found = own_ledger()
        if found is None:
            return CellReport(reason=NOT_RECORDED)
        own = parse_ledger(found[1], found[0], alive=True)
        return CellReport(build_report(run_of(own), [own, *other_ranks(own)], time.monotonic_ns()))
    except Exception as error:  # the fence around the training
        return CellReport(reason=f"the ledgers cannot be read: {error!r}")


def _sentence(data: Mapping[str, Any]) -> str:
    verdict, short = data["verdict"], data["too_short"]
    if verdict is not None:
        said = f"{verdict['family']} {percent(verdict['share'])} — {verdict['summary']}"
    else:
        said = short["sentence"] if short else "no verdict yet: no rank has begun its first step"
    outside = {"startup": data["startup_seconds"], **data["outside_seconds"]}
    beside = ", ".join(f"{cause} {spent:.1f} s" for cause, spent in outside.items() if spent > 0)
    return (
        f"<p><strong>{escape(said)}</strong><br>run {escape(data['run'])}: {data['steps']} steps in"
        f" {data['wall_seconds']:.1f} s; outside the loop: {escape(beside) or 'nothing'}</p>"
    )


def _bar(data: Mapping[str, Any]) -> str:
    shares = [(name, data["families"].get(name, 0.0)) for name in FAMILIES]
    pieces = "".join(
        f'<span title="{name} {percent(share)}" style="width:{100 * share:.2f}%;background:{FAMILY_COLOUR[name]}">'
        "</span>"
        for name, share in shares
        if share > 0
    )
    return f'<div role="img" style="display:flex;height:1.2rem;max-width:40rem">{pieces}</div>' if pieces else ""


def _table(data: Mapping[str, Any]) -> str:
    whole = data["rank_seconds"]
    causes = sorted(
        ((cause, s) for cause, s in data["seconds"].items() if s > LEAST_SHARE * whole), key=lambda e: -e[1]
    )
    rows = "".join(
        f'<tr><td {_CELL}><span style="color:{FAMILY_COLOUR[CAUSE_FAMILY[cause]]}">■</span> {cause}</td>'
        f"<td {_CELL}>{CAUSE_FAMILY[cause]}</td><td {_CELL}>{spent:.2f} s</td>"
        f"<td {_CELL}>{percent(spent / whole, 1)}</td></tr>"
        for cause, spent in causes
    )
    head = "".join(f"<th {_CELL}>{name}</th>" for name in ("cause", "family", "time", "share"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""


def _remarks(data: Mapping[str, Any]) -> str:
    said = [*data["remarks"], *data["problems"]]
    return "<ul>" + "".join(f"<li>{escape(one)}</li>" for one in said) + "</ul>" if said else ""
