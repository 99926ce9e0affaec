"""`whyidle report`: where the time of one live or ended run went, and its verdict, from its ledgers."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterable
from typing import Any

from ..advisor.advice.case import case_of
from ..advisor.advice.table import advise
from ..agent.hang import ras
from ..agent.kernel.oom_kills import add_ooms
from ..agent.parsers.ras import sentences
from ..agent.processes.owing import owing
from ..alerts.config import DEFAULT
from ..ledger.causes import CAUSE_FAMILY, FAMILIES
from ..ledger.layout import RING_STEPS
from ..verdict.ends import counted, named
from ..verdict.report import build_report
from ..verdict.unused import HEADLINE
from . import advice, choice, counters, exposition, gaps, gpu_guests, limits
from .agent import DEFAULT_ADDRESS
from .quantities import hours_of, in_bytes, in_time, percent
from .tables import aligned
from .terminal import shows_colours

ROWS = 16
"""The most ranks that the table shows. If there are more, it shows those that computed least."""
BAR = 40
SHOWN = 0.5
"""Time outside the loop is in the title if it took this many seconds."""
_NUMBERS = re.compile(r"\[\n\s+([-+.\deE]+(?:,\n\s+[-+.\deE]+)*)\n\s*\]")
UNUSED_COLOUR = 91
"""Of a verdict that is not a family."""
COLOURS: dict[str, int] = {
    "compute": 32,
    "storage": 33,
    "network": 34,
    "straggler": 35,
    "pipeline": 95,
    "communication": 94,
    "cpu": 36,
    "host": 31,
    "lost": 91,
    "unattributed": 90,
}
"""Family -> ANSI code of its foreground colour."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choice.add_arguments(parser)
    limits.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--agent",
        metavar="HOST:PORT",
        default=DEFAULT_ADDRESS,
        help="which agent to ask for the time that GPUs are idle in compute (default: %(default)s)",
    )
    parser.add_argument(
        "--ras",
        metavar="HOST:PORT",
        default=ras.default_address(),
        help="where to ask NCCL's RAS service about a run that hangs (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    least = limits.of("report", args)
    if least is None:
        return 2
    chosen = choice.choose("report", args)
    if chosen is None:
        return 1
    run, ledgers, problems = chosen
    add_ooms(ledgers)
    accelerated = gaps.on_accelerators(run, ledgers)
    beyond = counters.beyond_this_node(run, ledgers)
    of_gpus = (*gaps.NAMES, *gpu_guests.NAMES, *counters.OF_LAUNCHES) if accelerated else ()
    names = (*of_gpus, *(counters.NAMES if beyond else ()))
    reading = exposition.read(args.agent, *names) if names else None
    idle, why = gaps.idle(reading, run) if reading is not None and accelerated else ({}, "")
    now, doing = time.monotonic_ns(), owing(run, ledgers)
    report = build_report(run, ledgers, now, problems, idle, why, doing, least)
    case = case_of(run, ledgers, now, counters.of_node(run, ledgers, reading), idle, least=least)
    here = counters.live_here(run, ledgers)
    report["gpu_guests"] = gpu_guests.of(reading, here) if reading is not None else []
    verdict: Any = report["verdict"]
    if reading is not None and verdict is not None and verdict["family"] == "host":
        verdict["evidence"] += counters.slow_cpus(reading, DEFAULT.alerts.frequency_share)
    report["advice"] = advice.entries(advise(case, DEFAULT.gpu_hour_price))
    status = ras.ask(args.ras) if _hangs(report) and accelerated else None
    report["nccl"] = sentences(status) if status is not None else []
    if args.json:
        print(render_json(report))
    else:
        print(render_text(report, colour=shows_colours()), end="")
    return 0


def render_json(report: dict[str, Any]) -> str:
    """The report as indented JSON, with each list of numbers on one line."""
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", json.dumps(report, indent=2))


def render_text(report: dict[str, Any], colour: bool) -> str:
    """The report for people. Ends with a newline. ``colour``: with ANSI sequences."""
    paint: Callable[[str, str], str] = _paint if colour else lambda text, family: text
    parts = [_title(report)]
    if report["families"]:
        parts += [_ranks(report), _causes(report, paint)]
        if (report["verdict"] or {}).get("family") != HEADLINE:  # the bar is about GPUs
            parts.append(_bar(report, paint))
    parts.append(_verdict(report, paint))
    if spare := [f"gpus     {one['sentence']}" for one in (*report["gpus"], *report.get("gpu_guests", ()))]:
        parts.append(spare)
    if aside := [one["sentence"] for one in report["asides"] if one["sentence"]]:
        parts.append([f"aside    {sentence}" for sentence in aside])
    if given := report["given"]["sentences"]:
        parts.append([f"given    {sentence}" for sentence in given])
    if any(mount["named"] for mount in report["mounts"]):
        parts.append(_mounts(report))
    if beside := [cost["sentence"] for cost in report["background"] if cost["sentence"]]:
        parts.append([f"beside   {sentence}" for sentence in beside])
    if report["open"]:
        parts.append([f"waits    {wait['sentence']}" for wait in report["open"]])
    if changes := report.get("advice"):
        accelerated = any(rank["device"] != "cpu" for rank in report["per_rank"])
        parts.append(advice.render(changes, hours_of(accelerated), DEFAULT.currency))
    if report["remarks"]:
        parts.append([f"remark   {sentence}" for sentence in report["remarks"]])
    if report.get("nccl"):
        parts.append([f"NCCL     {line}".rstrip() for line in report["nccl"]])
    if _hangs(report):
        parts.append(["hang     `whyidle hang` writes what each rank is doing to a file for a ticket"])
    if report["problems"]:
        parts.append([f"problem  {sentence}" for sentence in report["problems"]])
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _paint(text: str, family: str) -> str:
    return f"\x1b[{COLOURS.get(family, UNUSED_COLOUR)}m{text}\x1b[0m"


def _hangs(report: dict[str, Any]) -> bool:
    """Whether ranks wait now for one that is missing, or in different collectives."""
    return bool(report["hangs"]) or (
        bool(report["different_collectives"]) and any(rank["alive"] for rank in report["per_rank"])
    )


def _title(report: dict[str, Any]) -> list[str]:
    ranks = report["ranks"]
    known = f"{ranks} rank{'' if ranks == 1 else 's'}"
    if report["world_size"] > ranks:
        known += f" of {report['world_size']} here"
    if report["not_begun"]:
        known += f" ({named(report['not_begun'])} {'has' if len(report['not_begun']) == 1 else 'have'} not begun)"
    attempts = max((rank["attempts"] for rank in report["per_rank"]), default=1)
    if attempts > 1:
        known += f", {attempts} attempts together"
    lines = [
        f"run {choice.name_of((report['owner'], report['run']))} · {known}, {report['state']}"
        f" · {counted(report['steps'], 'step')} in {report['wall_seconds']:.1f} s"
        f" · startup {report['startup_seconds']:.1f} s"
        + "".join(f" · {cause} {spent:.1f} s" for cause, spent in report["outside_seconds"].items() if spent >= SHOWN)
    ]
    if waits := report["startup_waits"]:
        lines.append(
            f"startup  {named(waits['waiting'])} waited {waits['seconds']:.1f} s in collectives for rank"
            f" {waits['rank']} before the first step"
        )
    if times := report["step_seconds"]:
        last = f" of the last {RING_STEPS}" if report["steps"] > RING_STEPS else ""
        lines.append(f"steps    {in_time(times['p50'])} (median{last}), 95 % take at most {in_time(times['p95'])}")
    if (saves := report["saves"])["count"]:
        lines.append(
            f"saves    {counted(saves['count'], 'checkpoint')} with {in_bytes(saves['bytes'])}"
            f" blocked for {saves['seconds']:.1f} s"
        )
    return lines


def _ranks(report: dict[str, Any]) -> list[str]:
    """One row per rank and one for all ranks, with families as shares of the row's wall time."""
    families = [name for name in FAMILIES if report["families"][name] >= 0.0005 or name == "compute"]
    header = ["rank", "steps", "wall s", *families]
    shown = [rank for rank in report["per_rank"] if rank["families"]]
    left_out = len(shown) - ROWS
    if left_out > 0:
        shown = sorted(
            sorted(shown, key=lambda rank: rank["families"]["compute"])[:ROWS], key=lambda rank: rank["rank"]
        )
    rows = [
        [str(rank["rank"]), str(rank["steps"]), f"{rank['wall_seconds']:.1f}", *_percents(rank["families"], families)]
        for rank in shown
    ]
    total = ["all", "", f"{report['rank_seconds']:.1f}", *_percents(report["families"], families)]
    lines = aligned([header, *rows, total])
    if left_out > 0:
        lines.append(f"(not shown: {counted(left_out, 'rank')} that computed more)")
    return lines


def _percents(shares: dict[str, float], families: list[str]) -> list[str]:
    return [percent(shares[name], 1) for name in families]


def _causes(report: dict[str, Any], paint: Callable[[str, str], str]) -> list[str]:
    """The causes with a visible share, the largest first."""
    whole = report["rank_seconds"]
    causes = [(cause, spent) for cause, spent in report["seconds"].items() if spent / whole >= 0.0005]
    causes.sort(key=lambda entry: -entry[1])
    width = max((len(cause) for cause, _ in causes), default=0)
    of = max((12, *(len(CAUSE_FAMILY[cause]) for cause, _ in causes)))
    lines = []
    for cause, spent in causes:
        family = CAUSE_FAMILY[cause]
        share = spent / whole
        bar = paint("█" * round(share * BAR), family)
        lines.append(f"{cause:<{width}}   {family:<{of}}   {spent:>9.2f} s   {percent(share, 1):>7}   {bar}".rstrip())
    return lines


def _mounts(report: dict[str, Any]) -> list[str]:
    """What the loop was blocked at for some time."""
    rows = [["reads and writes by mount", "data s", "saves s", "own code s", "rate", "a call", "limited by"]]
    for mount in report["mounts"][:ROWS]:
        rate, call, seconds = mount["bytes_per_second"], mount["call_bytes"], mount["seconds"]
        bound = "" if mount["counted"] else "≤ "
        each = f" in {in_time(mount['call_seconds'])}" if mount["call_seconds"] else ""
        rows.append(
            [
                mount["name"],
                *(f"{seconds[kind]:.1f}" for kind in ("data", "save", "own")),
                f"{bound}{in_bytes(rate)}/s" if rate else "–",
                f"{in_bytes(call)}{each}" if call else "–",
                mount["limited_by"] or "not known",
            ]
        )
    return aligned(rows, left=1)


def _bar(report: dict[str, Any], paint: Callable[[str, str], str]) -> list[str]:
    """All families as one bar, each with a separate pattern for readers who see no colour."""
    pieces, legend = [], []
    ends = _ends(report["families"][name] for name in FAMILIES)
    for name, (start, end) in zip(FAMILIES, ends, strict=True):
        if end > start:
            pieces.append(paint(MARKS[name] * (end - start), name))
            legend.append(f"{paint(MARKS[name], name)} {name} {percent(report['families'][name])}")
    return ["".join(pieces), "  ".join(legend)]


def _before(report: dict[str, Any]) -> str:
    """What the ranks do before the first step, and which have no ledger."""
    opened = [rank for rank in report["per_rank"] if rank["open_seconds"]]
    waiting = [rank for rank in opened if rank["open_phase"] == "collective"]
    first = max(waiting or opened, key=lambda rank: rank["open_seconds"], default=None)
    if first is None:
        return ""
    waited = first["open_seconds"]
    if not waiting:
        return f", {waited:.1f} s in the current phase" + (f", at {line}" if (line := first["open_line"]) else "")
    names = named([rank["rank"] for rank in waiting])
    have = "has" if len(waiting) == 1 else "have"
    said = f". {names[0].upper()}{names[1:]} {have} waited {waited:.1f} s in a collective"
    absent = report["not_begun"]
    if not absent:
        return said
    has = "has" if len(absent) == 1 else "have"
    return f"{said}; {named(absent)} {has} not entered it and {has} no ledger yet"


MARKS: dict[str, str] = {
    "compute": "█",
    "storage": "▓",
    "network": "▒",
    "straggler": "░",
    "pipeline": "=",
    "communication": "~",
    "cpu": "▚",
    "host": "▞",
    "lost": "×",
    "unattributed": "·",
}
"""Family -> its pattern in a bar, for readers who see no colour."""


def _ends(shares: Iterable[float]) -> list[tuple[int, int]]:
    """Where each share begins and ends on a line of 2 × BAR cells. Rounding errors do not accumulate."""
    ends, done = [], 0.0
    for share in shares:
        start, done = round(done * 2 * BAR), done + max(0.0, share)
        ends.append((start, round(done * 2 * BAR)))
    return ends


def _verdict(report: dict[str, Any], paint: Callable[[str, str], str]) -> list[str]:
    verdict = report["verdict"]
    if verdict is None and report["too_short"]:
        return [f"verdict  {report['too_short']['sentence']}"]
    if verdict is None:
        return [f"verdict  none yet — no rank has begun its first step{_before(report)}"]
    head = paint(f"{verdict['family']} {percent(verdict['share'])}", verdict["family"])
    return [f"verdict  {head} — {verdict['summary']}", *(f"         · {sentence}" for sentence in verdict["evidence"])]
