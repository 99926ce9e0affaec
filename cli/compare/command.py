"""`whyidle compare`: compares runs or saved reports, for people, for documents and for CI."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from ...advisor.compare.comparison import Comparison, compare
from ...advisor.compare.conditions import ALL_NAMES, Condition, Judged, NoCondition, NotKnown, judge, parse
from ...advisor.compare.measures import NoComparison
from ...advisor.compare.recorded import report_of
from ...advisor.compare.scaling import STRONG, WEAK
from ...ledger.directory import ledger_dir
from ...verdict.report import build_report
from ...verdict.saved import NoReport, Report, check, read_report
from .. import choice, gaps, limits
from ..agent import DEFAULT_ADDRESS
from ..prometheus import options, runs, seconds, stretch
from ..prometheus.client import NoAnswer, Prometheus
from ..quantities import counts
from .html import render_html
from .moments import Part, part_of
from .text import render_markdown, render_text, sentence

_WHOSE = "as OWNER/NAME"
MET = 3
"""The exit status if a condition of --fail-if is met."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="a report that `whyidle report --json` wrote, a directory of ledgers (its newest run), or a run's name,"
        " as NAME or OWNER/NAME; with --prometheus, also NAME@FROM..TO, a part of a run's time, such as llama@26h..24h"
        " or llama@2026-11-21T02:00..2026-11-21T04:00. The others are compared with the first one",
    )
    parser.add_argument(
        "--dir", metavar="DIR", default=ledger_dir(), help="where the ledgers of named runs are (default: %(default)s)"
    )
    parser.add_argument(
        "--agent",
        metavar="HOST:PORT",
        default=DEFAULT_ADDRESS,
        help="which agent to ask for the time that GPUs of named runs are idle in compute (default: %(default)s)",
    )
    limits.add_arguments(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print JSON instead of text")
    shown.add_argument("--markdown", action="store_true", help="print Markdown instead of text")
    parser.add_argument("--html", metavar="FILE", help="also write a self-contained web page")
    scale = parser.add_argument_group("scaling", "Options for runs with different world sizes.")
    scale.add_argument(
        "--samples-per-step",
        type=counts,
        metavar="N,N,…",
        help="samples per step of all ranks together, one number for each run (default: as data loaders counted them)",
    )
    scale.add_argument(
        "--scaling",
        choices=(WEAK, STRONG),
        help="weak: the batch of a rank is the same in all runs; strong: the batch of a step is",
    )
    checks = parser.add_argument_group(
        "for CI",
        f"Exit status {MET} if a condition is met. A condition is NAME>LIMIT or NAME<LIMIT: a change from the first"
        " run (network>+5%, step<-10%, save>+200ms), or a value (step>250ms, speedup<1.5, efficiency<80%). Quote it"
        f" for the shell. NAME is one of {', '.join(ALL_NAMES)}.",
    )
    checks.add_argument(
        "--fail-if",
        action="append",
        type=_condition,
        default=[],
        metavar="CONDITION",
        help="may be given several times",
    )
    checks.add_argument(
        "--values-alone",
        action="store_true",
        help="let a difference that may be chance meet a condition on a change, too",
    )
    options.add_arguments(parser, since="1h")


def _condition(text: str) -> Condition:
    try:
        return parse(text)
    except NoCondition as error:
        raise argparse.ArgumentTypeError(str(error)) from error


class Refused(Exception):
    """The command cannot go on. The message is a sentence for stderr; empty if it was printed already."""


def run(args: argparse.Namespace) -> int:
    """Exit status 0; 1 if runs cannot be compared or a condition cannot be checked; 2 for wrong arguments; MET."""
    try:
        if wrong := _usage(args):
            print(f"whyidle compare: {wrong}", file=sys.stderr)
            return 2
        named = list(zip(_names(args.runs), [named_report(argument, args) for argument in args.runs], strict=True))
        comparison = compare(named, args.samples_per_step, args.scaling)
        judged = [
            one for condition in args.fail_if for one in judge(condition, comparison, values_alone=args.values_alone)
        ]
        if args.html:
            _write(args.html, render_html(comparison, judged))
    except (Refused, NoReport, NoComparison, NoAnswer, NotKnown) as error:
        if str(error):
            print(f"whyidle compare: {error}", file=sys.stderr)
        return 1
    print(_rendered(args, comparison, judged), end="")
    for one in judged:
        if one.met:
            print(f"whyidle compare: {sentence(one)}", file=sys.stderr)
    return MET if any(one.met for one in judged) else 0


def _usage(args: argparse.Namespace) -> str:
    if len(args.runs) < 2:
        return f"give two or more runs, not only {args.runs[0]}"
    sizes = args.samples_per_step
    if sizes is not None and len(sizes) != len(args.runs):
        return f"--samples-per-step has {len(sizes)} numbers for {len(args.runs)} runs: give one for each"
    if sizes is not None and args.scaling:
        return "--samples-per-step says how batches grow; leave out --scaling"
    return ""


def _rendered(args: argparse.Namespace, comparison: Comparison, judged: list[Judged]) -> str:
    if args.json:
        conditions = [{**_plain(one), "said": sentence(one)} for one in judged]
        return json.dumps({**comparison.as_json(), "conditions": conditions}, indent=2) + "\n"
    return (render_markdown if args.markdown else render_text)(comparison, judged)


def _plain(one: Judged) -> dict[str, object]:
    value = one.value if one.value < float("inf") else None
    return {"condition": one.condition, "run": one.run, "met": one.met, "value": value, "untold": one.untold}


def _names(arguments: list[str]) -> list[str]:
    """Short names for columns. If two would be the same, the whole arguments."""
    short = [os.path.basename(argument.rstrip("/")).removesuffix(".json") or argument for argument in arguments]
    if len(set(short)) == len(short):
        return short
    if len(set(arguments)) == len(arguments):
        return arguments
    return [f"{argument} ({number})" for number, argument in enumerate(arguments, 1)]


def named_report(argument: str, args: argparse.Namespace) -> Report:
    """The report that an argument names: a file, or a run with ledgers here. Raises NoReport or Refused."""
    if os.path.isfile(argument) or argument.endswith(".json"):
        return read_report(argument)
    if args.prometheus and not os.path.isdir(argument):
        return _recorded(argument, args)
    directory, owner, name = args.dir, None, argument
    if os.path.isdir(argument):
        directory, name = argument, None
    elif "/" in argument:
        owner, _, name = argument.partition("/")
        if owner in ("", ".", "..", "~"):  # a path, not OWNER/NAME
            raise Refused(
                f"{argument} does not exist: give a report, a directory of ledgers, or a run as NAME or OWNER/NAME"
            )
    asked = argparse.Namespace(dir=directory, run_name=name, owner=owner)
    chosen = choice.choose("compare", asked)
    if chosen is None:
        raise Refused
    run, ledgers, problems = chosen
    idle, why = gaps.ask(args.agent, run) if gaps.on_accelerators(run, ledgers) else ({}, "")
    least = limits.of("compare", args)
    if least is None:
        raise Refused
    report: Report = build_report(run, ledgers, time.monotonic_ns(), problems, idle, why, least=least)
    try:
        check(report)
    except NoReport as error:
        raise NoReport(f"{argument} {error}") from error
    return report


def _recorded(argument: str, args: argparse.Namespace) -> Report:
    """Of a run in Prometheus. Raises Refused, NoAnswer or NoComparison."""
    now = time.time()
    try:
        part = part_of(argument, now)
    except argparse.ArgumentTypeError as error:
        raise Refused(f"{argument}: {error}") from error
    owner, _, name = part.name.partition("/") if "/" in part.name else ("", "", part.name)
    wanted = argparse.Namespace(run_name=name, owner=owner or None, cluster=args.cluster)
    asked = options.server(args)
    try:
        found = stretch.ask(asked, _within(asked, wanted, part, args.since))
        notes = [*found.notes, *(f"Prometheus warns: {one}" for one in asked.warnings)]
        return report_of(replace(found, notes=notes))
    except NoComparison as error:
        raise NoComparison(f"{argument} {error}") from error


def _within(asked: Prometheus, wanted: argparse.Namespace, part: Part, since: float) -> runs.Chosen:
    """The run, and the given time, otherwise the last ``since`` seconds before its last sign of life."""
    if part.start is None or part.end is None:
        chosen = runs.choose(asked, wanted, max(since, options.ENDED_SECONDS), _WHOSE)
        end = seconds.last_sign(asked, chosen)
        return chosen._replace(start=max(chosen.start, end - since), end=end)
    chosen = runs.choose(asked, wanted, max(time.time() - part.start, options.ENDED_SECONDS), _WHOSE)
    return chosen._replace(start=part.start, end=min(part.end, chosen.end))


def _write(path: str, page: str) -> None:
    try:
        Path(path).write_text(page, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from error
