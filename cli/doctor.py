"""`whyidle doctor`: what an agent can and cannot see on this node, and what to do about it."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from . import placement
from .node import add_node_arguments, collectors_of
from .terminal import shows_colours

if TYPE_CHECKING:
    from ..agent.examination import Finding

DEVICES = 8
"""The most devices that a line names. If there are more, it gives their number."""
FILES = 3
"""The most files of a device with the same error that a line names."""
ERRORS = 20
GREEN, YELLOW, RED, GREY = 32, 33, 31, 90
STATES: dict[str, tuple[str, int]] = {
    "up": ("ok", GREEN),
    "absent": ("absent", GREY),
    "fault": ("failed", RED),
    "deadline": ("hangs", RED),
    "hanging": ("hangs", RED),
    "skipped": ("hangs", RED),
}
"""State of a collector -> the word for it, and its colour."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    add_node_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Exit status 0, or 1 if a collector failed or hangs."""
    from ..agent.examination import examine, ledger_directory_problem
    from ..agent.files import raise_file_limit
    from ..agent.ledgers import LedgerStore

    raise_file_limit()
    ledgers = LedgerStore(args.directory, float("inf"))
    collectors = collectors_of(args, ledgers)
    findings = [plain(finding) for finding in examine(collectors, args.deadline)]
    ranks = ledgers.latest.ranks
    report = {
        "node": platform.node(),
        "uid": os.geteuid(),
        "ledgers": {
            "directory": args.directory,
            "problem": ledger_directory_problem(args.directory),
            "live_ranks": sum(rank.newest.alive for rank in ranks),
            "ended_ranks": sum(not rank.newest.alive for rank in ranks),
            "unusable": {reason: count for reason, count in ledgers.latest.errors.items() if count},
            "failed_hooks": sorted(
                {hook for rank in ranks for hook, state in rank.newest.hook_states.items() if state == "failed"}
            ),
        },
        "collectors": findings,
        "placement": placement.of(collectors),
    }
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        print(render_text(report, colour=shows_colours()), end="")
    return int(any(STATES[finding["state"]][1] == RED for finding in findings))


def plain(finding: Finding) -> dict[str, Any]:
    """A finding as JSON, with named fields at every level."""
    lists = {
        "blind": [blind._asdict() for blind in finding.blind],
        "errors": [error._asdict() for error in finding.errors],
    }
    return {field.name: getattr(finding, field.name) for field in fields(finding)} | lists


def render_text(report: dict[str, Any], *, colour: bool) -> str:
    """The report in plain words."""
    lines = [f"node {report['node']}, seen as uid {report['uid']}", ""]
    for finding in report["collectors"]:
        word, tint = STATES[finding["state"]]
        lines.append(f"  {finding['name']:<11}{_paint(f'{word:<8}', tint, colour)}{_seen(finding)}".rstrip())
    parts = [("Ledgers", _ledgers(report["ledgers"])), ("What to do", _todo(report))]
    if report["placement"]:
        parts.insert(1, ("NUMA nodes", placement.lines(report["placement"])))
    for title, found in parts:
        lines += ["", title, *(f"  {line}" for line in found)]
    return "\n".join(lines) + "\n"


def _paint(text: str, tint: int, colour: bool) -> str:
    return f"\x1b[{tint}m{text}\x1b[0m" if colour else text


def _seen(finding: dict[str, Any]) -> str:
    if finding["state"] != "up":
        return finding["detail"] or f"no answer in {finding['seconds']:.1f} s"
    devices = finding["devices"]
    more = f" and {len(devices) - DEVICES} more" if len(devices) > DEVICES else ""
    named = f": {', '.join(devices[:DEVICES])}{more}" if devices else ""
    unread = f", {len(finding['errors'])} values that could not be read" if finding["errors"] else ""
    return f"{finding['series']} series{unread}{named}"


def _ledgers(ledgers: dict[str, Any]) -> Iterator[str]:
    if ledgers["problem"]:
        yield ledgers["problem"][0]
        return
    yield f"{ledgers['live_ranks']} live and {ledgers['ended_ranks']} ended ranks in {ledgers['directory']}"
    for reason, count in ledgers["unusable"].items():
        yield f"{count} unusable ledgers: {reason}"
    if ledgers["failed_hooks"]:
        yield f"hooks that failed in a rank: {', '.join(ledgers['failed_hooks'])}"


def _todo(report: dict[str, Any]) -> Iterator[str]:
    from ..agent.examination import ABSENT_REMEDIES

    nothing = True
    if report["ledgers"]["problem"]:
        nothing = False
        yield f"ledgers: {report['ledgers']['problem'][1]}"
    for finding in report["collectors"]:
        name = finding["name"]
        if finding["state"] == "absent" and name in ABSENT_REMEDIES:
            nothing = False
            yield f"{name}: {ABSENT_REMEDIES[name]}"
        for blind in finding["blind"]:
            nothing = False
            yield f"{name}: cannot see {blind['what']}, because {blind['why']}: {blind['remedy']}"
        for line in _unreadable(finding):
            nothing = False
            yield line
    if nothing:
        yield "nothing: the agent sees everything that this node has"


def _unreadable(finding: dict[str, Any]) -> Iterator[str]:
    """Sentences about files that could not be read, one for all files with the same error on a device."""
    from ..agent.files import REASONS

    alike: dict[tuple[str, str], list[str]] = {}
    for error in finding["errors"]:
        alike.setdefault((error["device"], error["reason"]), []).append(error["file"])
    for (device, reason), files in list(alike.items())[:ERRORS]:
        more = f" and {len(files) - FILES} more" if len(files) > FILES else ""
        where = f"{device}: " if device else ""
        remedy = REASONS.get(reason, "if it does not go away, report it with the result of that call")
        yield f"{finding['name']}: {where}cannot read {', '.join(files[:FILES])}{more} ({reason}): {remedy}"
    if len(alike) > ERRORS:
        yield f"{finding['name']}: {len(alike) - ERRORS} more of the same kind; --json lists all"
