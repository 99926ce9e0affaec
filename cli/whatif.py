"""`whyidle whatif`: how long a step of a live or ended run would take if something were faster."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from ..advisor.whatif.answer import answer
from ..advisor.whatif.bounds import NoBounds, Spent
from ..advisor.whatif.changes import Changes, factor
from ..advisor.whatif.trace import NoTrace
from ..alerts.config import DEFAULT
from ..ledger.directory import Run, sentences
from ..verdict.ends import counted
from ..verdict.saved import NoReport, read_report, seconds_of_ranks
from . import bounds, choice, limits, tables
from .prometheus import options, seconds
from .prometheus.client import NoAnswer
from .prometheus.runs import choose
from .quantities import gpu_hour_price, hours_of, in_time, percent

FACTORS: dict[str, str] = {
    "network": "transfers between ranks",
    "storage": "reads of data workers, saves and restores",
    "cpu": "what data workers and saves compute",
    "host": "the loop's own code between phases",
    "compute": "forward, backward and optimizer",
}
"""Option -> the part of a step that becomes faster."""
FRESH_SECONDS = 300.0
"""A run that was seen within this time counts as live."""
BAR = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choice.add_arguments(parser)
    limits.add_arguments(parser)
    for name, what in FACTORS.items():
        parser.add_argument(f"--{name}", type=_reading(factor), metavar="xK|none", help=f"K times faster: {what}")
    parser.add_argument("--straggler", choices=("none",), help="no rank is late because of its own time")
    parser.add_argument(
        "--checkpoint",
        type=_reading(_checkpoint),
        metavar="xK|none|async",
        help="K times faster saves, or asynchronous saves",
    )
    parser.add_argument("--pipeline", choices=("balance",), help="all stages of a pipeline compute for the same time")
    parser.add_argument("--workers", type=_reading(_workers), metavar="+N", help="N more data workers for each rank")
    parser.add_argument("--sweep", action="store_true", help="also print the curve over factors, and where it flattens")
    parser.add_argument(
        "--price", type=gpu_hour_price, default=DEFAULT.gpu_hour_price, metavar="AMOUNT", help="what a GPU-hour costs"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--report", metavar="FILE", help="bounds for the run of a saved `whyidle report --json`")
    options.add_arguments(parser, since="1h")


def _reading(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Turns the ValueError of ``read`` into an ArgumentTypeError, the only error whose message argparse prints."""

    def checked(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked


def _checkpoint(text: str) -> float | str:
    if text == "async":
        return text
    try:
        return factor(text)
    except ValueError as error:
        raise ValueError(f"{error}, or async") from error


def _workers(text: str) -> int:
    if not re.fullmatch(r"\+[1-9][0-9]{0,3}", text):
        raise ValueError(f"{text!r}: write how many data workers to add to each rank, such as +4")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Exit status 0; 1 if the run does not exist, is too short, has nothing to predict from, or Prometheus does not
    answer; 2 if the limits in the environment are not valid."""
    least = limits.of("whatif", args)
    if least is None:
        return 2
    if args.report is not None:
        return _print_bounds(args, lambda: _of_report(args))
    if args.prometheus:
        return _print_bounds(args, lambda: _of_prometheus(args))
    chosen = choice.choose("whatif", args)
    if chosen is None:
        return 1
    try:
        found = answer(
            chosen.run,
            chosen.ledgers,
            time.monotonic_ns(),
            changes_of(args),
            price=args.price,
            currency=DEFAULT.currency,
            swept=args.sweep,
            least=least,
        )
    except NoTrace as error:
        print(f"whyidle whatif: run {choice.name_of(chosen.run)}: {error}.", file=sys.stderr)
        for sentence in sentences(chosen.problems):
            print(f"whyidle whatif: {sentence}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=2) if args.json else render_text(found), end="\n" if args.json else "")
    return 0


def _print_bounds(args: argparse.Namespace, build: Callable[[], dict[str, Any]]) -> int:
    try:
        found = build()
    except (NoAnswer, NoBounds, NoReport) as error:
        print(f"whyidle whatif: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=2) + "\n" if args.json else bounds.render(found), end="")
    return 0


def _of_prometheus(args: argparse.Namespace) -> dict[str, Any]:
    """The bounds for a run in Prometheus, which has no steps to replay. Raises NoAnswer and NoBounds."""
    asked = options.server(args)
    chosen = choose(asked, args, max(args.since, options.ENDED_SECONDS))
    window = seconds.ask(asked, chosen, args.since)
    notes = [*_window_notes(window), *(f"Prometheus warns: {one}" for one in asked.warnings)]
    return _bounds(args, chosen.run, window.spent, "Prometheus", window.accelerated, notes)


def _of_report(args: argparse.Namespace) -> dict[str, Any]:
    """The bounds for the run of a saved report. Raises NoReport and NoBounds."""
    if args.run_name or args.prometheus:
        raise NoReport("the file of --report already names the run: leave out RUN and --prometheus")
    report = read_report(args.report)
    ranks = [one for one in seconds_of_ranks(report) if sum(one.values()) > 0]  # others have not begun a step
    if not report["steps"] or not ranks:
        raise NoReport(f"{args.report}: no rank has finished a step")
    if short := report.get("too_short"):
        raise NoReport(f"{args.report} is {short['sentence']}")
    spent = Spent(ranks, report["steps"], missing=max(0, int(report["world_size"]) - len(ranks)))
    accelerated = any(one.get("device", "cpu") != "cpu" for one in report["per_rank"])
    run = (report.get("owner") or "", report["run"])
    return _bounds(args, run, spent, "A report", accelerated, _missing_notes(spent))


def _bounds(
    args: argparse.Namespace, run: Run, spent: Spent, source: str, accelerated: bool, notes: list[str]
) -> dict[str, Any]:
    return bounds.build(
        run,
        spent,
        changes_of(args),
        source=source,
        accelerated=accelerated,
        price=args.price,
        currency=DEFAULT.currency,
        swept=args.sweep,
        notes=notes,
    )


def _window_notes(window: seconds.Window) -> list[str]:
    ended = f", which ended {in_time(window.ago)} ago" if window.ago > FRESH_SECONDS else ""
    said = [f"these figures are for the last {in_time(window.seconds)} of the run{ended}"]
    return [*said, *_missing_notes(window.spent)]


def _missing_notes(spent: Spent) -> list[str]:
    if not spent.missing:
        return []
    return [f"{spent.missing} more ranks of the run were not seen: the bounds do not include them"]


def changes_of(args: argparse.Namespace) -> Changes:
    given = {name: value for name in FACTORS if (value := getattr(args, name)) is not None}
    save = args.checkpoint
    return Changes(
        **given,
        checkpoint=save if isinstance(save, float) else 1.0,
        async_save=save == "async",
        no_stragglers=args.straggler == "none",
        balanced=args.pipeline == "balance",
        workers=args.workers or 0,
    )


def render_text(found: dict[str, Any]) -> str:
    """The answer for people. Ends with a newline."""
    parts = [_title(found), _table(found)]
    if found["sweep"]:
        parts.append(_curve(found["sweep"]))
    parts.append(_notes(found))
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _title(found: dict[str, Any]) -> list[str]:
    name, steps = choice.name_of((found["owner"], found["run"])), found["replayed_steps"]
    ranks = f"{found['ranks']} rank{'' if found['ranks'] == 1 else 's'}"
    return [
        f"run {name} · {ranks} · {steps} of {found['steps']} steps replayed · {_seconds(found['step_seconds'])} a step"
        f" · {found['gpu_hours']:.3g} {hours_of(found['accelerated'])} so far"
    ]


def _table(found: dict[str, Any]) -> list[str]:
    money = found["price"] is not None
    unit = hours_of(found["accelerated"])
    header = ["a step takes", "saves", "at least", "at most", unit, *(["money"] if money else []), "with"]
    rows = [*found["changes"], *([found["together"]] if found["together"] else [])]
    cells = [header]
    for row in rows:
        cells.append(
            [
                _seconds(row["step_seconds"]),
                percent(row["share"], 1),
                percent(row["least"], 1),
                percent(row["most"], 1),
                f"{row['gpu_hours_saved']:.3g}",
                *([f"{found['currency']}{row['money_saved']:,.2f}"] if money else []),
                row["options"],
            ]
        )
    return tables.aligned(cells, last_left=True)


def _curve(sweep: dict[str, Any]) -> list[str]:
    most = max(1e-9, *(point["share"] for point in sweep["points"]))
    lines = [f"{' '.join(sweep['options'])} by its factor"]
    for point in sweep["points"]:
        bar = "█" * round(BAR * max(0.0, point["share"]) / most)
        step = _seconds(point["step_seconds"])
        lines.append(f"{point['factor']:>6}   {step:>9}   {percent(point['share'], 1):>7}   {bar}".rstrip())
    if sweep["flat_from"]:
        lines.append(f"flat from {sweep['flat_from']} on: nine tenths of the possible gain")
    return lines


def _notes(found: dict[str, Any]) -> list[str]:
    said = [f"assumed  {name}: {sentence}." for name, sentence in found["assumed"].items()]
    if found["left_out_steps"]:
        left_out = counted(found["left_out_steps"], "step")
        said.append(f"note     left out: {left_out}, because the calls of the ranks do not match")
    if found["unsplit_share"] >= 0.005:
        share = percent(found["unsplit_share"], 1)
        said.append(f"note     {share} of the time were waits that could not be split: no change makes them shorter")
    return tables.notes(said)


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
