"""`whyidle goodput`: how much of a run was progress over all its attempts, and how often to save."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from statistics import mean
from typing import Any

from ..advisor.checkpoints import Advice, Interval, Saving, advise, mtbf_range, saving_of
from ..advisor.compare.measures import NoComparison, check_steps
from ..advisor.compare.recorded import report_of
from ..advisor.compare.scaling import Scaling, scaling
from ..advisor.goodput import (
    AFTER_CRASH,
    AFTER_END,
    AFTER_PREEMPTION,
    AFTER_UNKNOWN,
    FIRST,
    PARTS,
    RETURN,
    Attempt,
    Goodput,
    goodput,
)
from ..advisor.lines import BRANCH
from ..agent.kernel.oom_kills import add_ooms
from ..alerts.config import DEFAULT
from ..ledger.directory import Run, run_of, sentences
from ..ledger.reader import Ledger
from ..verdict.accounts import account
from ..verdict.ends import listed
from ..verdict.report import build_report
from ..verdict.saved import NoReport, Report
from ..verdict.spare import spare_of
from ..verdict.standing import STALL_FACTOR
from ..verdict.unused import idle_ranks, sentence
from . import choice, limits
from .agent import DEFAULT_ADDRESS
from .compare.command import Refused, named_report
from .durations import duration, some_time
from .prometheus import history, options, stretch
from .prometheus.client import NoAnswer
from .prometheus.runs import choose
from .quantities import gpu_hour_price, in_time, percent
from .scaling import scaling_notes, scaling_tables
from .tables import aligned, padded

_MEANS = {
    "productive": "new steps, without evaluations and rollouts",
    "evaluation": "evaluations in new steps",
    "rollout": "rollouts in new steps",
    "unused": "new steps on the CPU, beside GPUs that the run was given",
    "saving": "blocked in saves",
    "lost": "steps that an earlier attempt had finished",
    "branched": "steps that a branch from an older checkpoint has left",
    "stalled": f"steps that took over {STALL_FACTOR:.0f} usual steps: the time beyond one usual step",
    "startup": "until the first step of the first attempt",
    "shutdown": "after the last step of a process",
    "between": "between two trainings in one process",
    "interactive": "a notebook waited for its user",
    "recovery": "from the end of an attempt to the first step of the next one",
}

MARGIN_SECONDS, LEAST_SECONDS = 90.0, 300.0
"""Steps and seconds reach Prometheus at different times. So what is compared is an attempt without this time at its
beginning and its end. Attempts with fewer seconds of steps are not compared."""
_SHARDED = "; sharded: each rank saves its part at the same time, and the storage keeps up"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choice.add_arguments(parser)
    parser.add_argument("--mtbf", type=some_time, metavar="TIME", help="mean time between failures (default: observed)")
    parser.add_argument(
        "--recovery", type=duration, metavar="TIME", help="how long a restart takes (default: observed)"
    )
    parser.add_argument(
        "--save-cost",
        type=some_time,
        metavar="TIME",
        help="how long a save takes (default: observed). The steps between two saves stay the same",
    )
    parser.add_argument(
        "--price",
        type=gpu_hour_price,
        default=str(DEFAULT.gpu_hour_price),
        help="price of a GPU-hour (default: %(default)s)",
    )
    parser.add_argument(
        "--reference",
        metavar="RUN",
        help="a run with another number of ranks, as for `whyidle compare`: how well this run scales, compared with it"
        " (default: attempts of this run with other numbers of ranks, if there are any)",
    )
    limits.add_arguments(parser)
    parser.add_argument("--agent", metavar="HOST:PORT", default=DEFAULT_ADDRESS, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    options.add_arguments(parser, since="30d")


def run(args: argparse.Namespace) -> int:
    """Exit status 0; 1 if a run does not exist, has not finished a step, or Prometheus does not answer."""
    try:
        answer = _recorded(args) if args.prometheus else _here(args)
        if answer is None:
            return 1
        found, problems, sizes = answer
        problems[:0] = _unseen(found, bool(args.prometheus))
        if not found.steps:
            name = choice.name_of((found.owner, found.run))
            raise NoAnswer(f"no rank of run {name} has finished a step yet")
        scaled = _scaling(found, sizes, args, problems)
    except (NoAnswer, Refused, NoReport, NoComparison) as error:
        if str(error):
            print(f"whyidle goodput: {error}", file=sys.stderr)
        return 1
    report = build(found, args, problems) | {"scaling": [asdict(one) for one in scaled]}
    shown = json.dumps(report, indent=2) + "\n" if args.json else render(report, args.price) + _scaling_text(scaled)
    print(shown, end="")
    return 0


Named = list[tuple[str, Report]]


def _here(args: argparse.Namespace) -> tuple[Goodput, list[str], Callable[[], Named]] | None:
    """The goodput of the chosen run, problems with its ledgers, and its reports by world size, from this node. None if
    there is no such run."""
    least = limits.of("goodput", args)
    chosen = choice.choose("goodput", args) if least is not None else None
    if chosen is None:
        return None
    add_ooms(chosen.ledgers)
    now = time.monotonic_ns()
    found = goodput(chosen.run, chosen.ledgers, now)

    def sizes() -> Named:
        by_size: dict[int, list[Ledger]] = {}
        for ledger in chosen.ledgers:
            if run_of(ledger) == chosen.run and ledger.window_ns and ledger.steps:
                by_size.setdefault(ledger.world_size, []).append(ledger)
        return [
            (_size(world), build_report(chosen.run, ledgers, now, least=least))
            for world, ledgers in sorted(by_size.items())
        ]

    return found, [*_unused(chosen.run, chosen.ledgers, now), *sentences(chosen.problems)], sizes


def _unseen(found: Goodput, prometheus: bool) -> list[str]:
    if not found.unseen:
        return []
    if len(found.unseen) == 1:
        was, its, have = "was", "it ended before its", "has"
    else:
        was, its, have = "were", "they ended before their", "have"
    other = "between two scrapes" if prometheus else f"{have} no ledger here"
    return [f"{_numbered(found.unseen)} {was} not seen: {its} first sign of training, or {other}"]


def _numbered(attempts: list[int]) -> str:
    return f"attempt{'s' * (len(attempts) > 1)} {listed([*map(str, attempts)])}"


def _unused(run: Run, ledgers: Sequence[Ledger], now: int) -> list[str]:
    """GPUs of the run that did nothing: those of ranks on the CPU, and those that no rank used."""
    whole = account(run, ledgers, now)
    idle = idle_ranks(whole)
    found = [f"the GPUs made no progress at all: {sentence(whole, idle)}"] if idle else []
    others = [ledger for ledger in ledgers if run_of(ledger) != run]
    for one in spare_of(run, [*(rank.newest for rank in whole.ranks), *others]):
        if one.unused:
            hours = one.unused * max(rank.wall for rank in whole.ranks if rank.newest.node == one.node) / 3600
            found.append(f"{hours:.3g} GPU-hours beside these had no rank. The run {one.sentence}")
    return found


def _recorded(args: argparse.Namespace) -> tuple[Goodput, list[str], Callable[[], Named]]:
    """The goodput of the chosen run, what is missing from it, and its reports by world size, from Prometheus.

    Raises NoAnswer.
    """
    asked = options.server(args)
    chosen = choose(asked, args, args.since)
    found, problems = history.ask(asked, chosen)

    def sizes() -> Named:
        longest: dict[int, Attempt] = {}
        for one in sorted(found.attempts, key=lambda one: one.seconds - one.startup):
            if one.steps and one.seconds - one.startup >= LEAST_SECONDS:
                longest[one.world_size] = one
        named: Named = []
        for world, one in sorted(longest.items()):
            part = chosen._replace(start=one.start + one.startup + MARGIN_SECONDS, end=one.end - MARGIN_SECONDS)
            try:
                named.append((_size(world), report_of(stretch.ask(asked, part))))
            except (NoComparison, NoAnswer) as error:
                problems.append(
                    f"the scaling is without the attempt of {_size(world)}, of which Prometheus says: {error}"
                )
        return named

    return found, problems, sizes


def _size(world: int) -> str:
    return f"{world} rank{'s' * (world != 1)}"


def _scaling(
    found: Goodput, sizes: Callable[[], Named], args: argparse.Namespace, problems: list[str]
) -> list[Scaling]:
    """How well the run scales; empty if it had only one world size and there is no reference. Adds to ``problems``
    which sizes are left out.

    Raises Refused, NoReport, NoAnswer or NoComparison.
    """
    resized = len({one.world_size for one in found.attempts if one.steps}) > 1
    named: Named = []
    for size, report in sizes() if args.reference or resized else ():
        try:
            check_steps(size, report)
            named.append((size, report))
        except NoComparison as error:
            problems.append(f"the scaling is without one size: {error}")
    if args.reference:
        named.insert(0, (args.reference, named_report(args.reference, args)))
        check_steps(*named[0])
    scaled = scaling(named) if len(named) > 1 else []
    if args.reference and not scaled:
        raise NoComparison(f"{args.reference} has as many ranks as this run: give a run with another number of ranks")
    return scaled


def _scaling_text(found: list[Scaling]) -> str:
    if not found:
        return ""
    parts = [[table.title, *aligned(padded(table), left=1)] for table in scaling_tables(found)]
    parts.append([f"note     {sentence}" for sentence in scaling_notes(found)])
    return "\n" + "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def build(found: Goodput, args: argparse.Namespace, problems: list[str]) -> dict[str, Any]:
    """The report as JSON. ``seconds`` and ``computed_seconds`` are rank-seconds; all other seconds are wall time."""
    least, most = mtbf_range(found.watched, found.interruptions)
    observed = found.watched / found.interruptions if found.interruptions else None
    saving, why = _saving(found, args.save_cost)
    recovery, where = _recovery(found, args.recovery)
    mtbf = args.mtbf or (least if found.interruptions == 1 else observed) or 0.0
    if saving is not None and saving.step <= 0:
        why = "saves took all of the time since the first step, so intervals cannot be compared"
    elif saving is not None and not mtbf:
        why = "no failure yet, so the mean time between failures is not known: give it with --mtbf"
    advice = advise(saving, mtbf, recovery) if saving is not None and not why else None
    return {
        "owner": found.owner,
        "run": found.run,
        "ranks": found.ranks,
        "world_size": found.world_size,
        "ettr": found.ettr,
        "seconds": found.seconds,
        "computed_seconds": found.computed,
        "attempts": [{**asdict(attempt), "seconds": attempt.seconds} for attempt in found.attempts],
        "unseen": found.unseen,
        "failures": found.failures,
        "unseen_failures": found.unseen_failures,
        "interruptions": found.interruptions,
        "watched_seconds": found.watched,
        "mtbf_seconds": observed,
        "mtbf_range_seconds": [least, most if most < float("inf") else None],
        "recovery_seconds": recovery,
        "recovery_from": where,
        "saving": asdict(saving) if saving is not None else None,
        "advice": _advice(advice, found.world_size, args.price) if advice is not None else None,
        "no_advice": why if advice is None else "",
        "problems": problems,
    }


def _saving(found: Goodput, cost: float | None) -> tuple[Saving | None, str]:
    if not found.saves and found.blocked:
        return None, (
            "it saves in a way that the hooks do not know, so it is not known how often: put"
            ' whyidle.phase("checkpoint") around each save'
        )
    if not found.saves and found.behind:
        return None, "saves were seen in another thread or process: it is not known how often this run saves"
    if not found.saves:
        return None, "no save was seen: it is not known whether this run saves, and what a save costs"
    saving = saving_of(found)
    if cost:
        # The loop saves after the same number of steps, so a longer save makes the cycle longer.
        cycle = saving.cycle - saving.blocked + cost
        return replace(saving, blocked=cost, blocked_cpu=min(saving.blocked_cpu, cost), cycle=cycle), ""
    if not saving.blocked:
        return None, "saves were seen, but none of them blocked the training: they cost nothing"
    return saving, ""


def _recovery(found: Goodput, given: float | None) -> tuple[float, str]:
    if given is not None:
        return given, "given"
    if found.recoveries:
        return mean(found.recoveries), "observed"
    return found.attempts[0].startup, "no restart was seen, so this is the startup"


def _advice(advice: Advice, ranks: int, price: float) -> dict[str, Any]:
    def entry(interval: Interval) -> dict[str, Any]:
        hours = interval.gained * ranks * 24
        return {**asdict(interval), "gpu_hours_a_day": hours, "money_a_day": hours * price if price else None}

    return {
        "mtbf_seconds": advice.mtbf,
        "recovery_seconds": advice.recovery,
        "in_use": entry(advice.in_use),
        "recommended": [entry(interval) for interval in advice.recommended],
        "asynchronous": entry(advice.hidden),
        "sharded": entry(advice.sharded) if advice.sharded is not None else None,
    }


def render(report: dict[str, Any], price: float) -> str:
    """The report for people. Ends with a newline."""
    parts = [_title(report), _parts(report), _attempts(report), _failures(report), _checkpoints(report, price)]
    if report["problems"]:
        parts.append([f"problem  {sentence}" for sentence in report["problems"]])
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _title(report: dict[str, Any]) -> list[str]:
    here = f"{report['ranks']} rank{'s' * (report['ranks'] > 1)}"
    if report["world_size"] > report["ranks"]:
        here += f" of {report['world_size']} here"
    count = len(report["attempts"]) + len(report["unseen"])
    return [
        f"run {choice.name_of((report['owner'], report['run']))} · {here} · {count} attempt{'s' * (count > 1)}"
        f" · {100 * report['ettr']:.1f} % of the time was progress (ETTR)"
    ]


def _parts(report: dict[str, Any]) -> list[str]:
    seconds = report["seconds"]
    whole = sum(seconds.values())
    rows = [
        [part, in_time(seconds[part]), percent(seconds[part] / whole, 1), _MEANS[part]]
        for part in PARTS
        if seconds[part] > 0 or part == "productive"
    ]
    rows.insert(
        1, ["  compute", in_time(report["computed_seconds"]), percent(report["computed_seconds"] / whole, 1), ""]
    )
    return [*aligned(rows, left=1, last_left=True), f"(times of all ranks together: {in_time(whole)})"]


def _attempts(report: dict[str, Any]) -> list[str]:
    left = any(one["branched"] for one in report["attempts"])
    header = ["attempt", "ranks", "lasted", "startup", "steps", "repeated", *(["left"] if left else []), "saves"]
    header += ["ended", "began"]
    rows = [
        [
            str(one["number"]),
            str(one["ranks"]),
            in_time(one["seconds"]),
            in_time(one["startup"]),
            str(one["steps"]),
            str(one["repeated"]),
            *([str(one["branched"])] if left else []),
            str(one["saves"]),
            _state(one),
            _began(one),
        ]
        for one in report["attempts"]
    ]
    why: dict[str, list[int]] = {}
    for one in report["attempts"]:
        if one["failure"]:
            why.setdefault(one["failure"], []).append(one["number"])
    reasons = [f"({_numbered(numbers)}: {said})" for said, numbers in why.items()]
    return [*aligned([header, *rows], last_left=True), *reasons]


def _began(attempt: dict[str, Any]) -> str:
    step, saved_by = attempt["restored_step"], attempt["restored_from"]
    of = f"step {step}" + (f" of attempt {saved_by}" if saved_by >= 0 else "")
    return {
        FIRST: "",
        BRANCH: f"branch from {of}: an older checkpoint, and another command",
        RETURN: f"manual return to {of}: an older checkpoint, and the same command",
        AFTER_PREEMPTION: "after a preemption",
        AFTER_CRASH: "after a crash",
        AFTER_END: "continued",
        AFTER_UNKNOWN: "started again",
    }[attempt["began"]]


def _state(attempt: dict[str, Any]) -> str:
    if attempt["alive"]:
        return "live"
    if attempt["preempted"]:
        return "preempted"
    if attempt["failed"]:
        return "failed"
    return {True: "ended", False: "killed", None: "over"}[attempt["clean"]]


def _failures(report: dict[str, Any]) -> list[str]:
    least, most = report["mtbf_range_seconds"]
    watched, count = in_time(report["watched_seconds"]), report["interruptions"]
    unseen = report["unseen_failures"]
    early = report["failures"] - count - unseen
    before = f", and {early} before the first step" if early else ""
    before += f", and {unseen} that {'was' if unseen == 1 else 'were'} not seen" if unseen else ""
    if not count:
        return [
            f"failures  none in {watched}{before}: with 95 % confidence the mean time between them is above"
            f" {in_time(least)}"
        ]
    if count == 1:
        return [
            f"failures  1 in {watched}{before}, which is too few for a rate: with 95 % confidence the mean time between"
            f" them is above {in_time(least)}"
        ]
    return [
        f"failures  {count} in {watched}{before}: one in {in_time(report['mtbf_seconds'])} on average"
        f" (95 %: {in_time(least)} to {in_time(most)})"
    ]


def _checkpoints(report: dict[str, Any], price: float) -> list[str]:
    saving, advice = report["saving"], report["advice"]
    lines = []
    if saving is not None:
        lines.append(
            f"saves     {saving['saves']}, each blocks for {in_time(saving['blocked'])}"
            f" ({in_time(saving['blocked_cpu'])} of it on a CPU), one in {in_time(saving['cycle'])}"
        )
    if advice is None:
        return [*lines, f"interval  {report['no_advice']}"]
    money = ["money a day"] if price else []
    header = ["interval", "save each", "steps", "progress", "GPU-hours a day", *money]
    entries = [advice["in_use"], *advice["recommended"], advice["asynchronous"]]
    if advice["sharded"] is not None:
        entries.append(advice["sharded"])
    rows = [
        [
            one["name"],
            in_time(one["cycle"]),
            f"{one['steps']:,.0f}" if one["steps"] >= 10 else f"{one['steps']:.1f}",
            f"{100 * one['available']:.1f} %",
            f"{one['gpu_hours_a_day']:+,.2f}",
            *([_money(one["money_a_day"])] if price else []),
        ]
        for one in entries
    ]
    mtbf, recovery = in_time(advice["mtbf_seconds"]), in_time(advice["recovery_seconds"])
    return [
        *lines,
        "",
        *aligned([header, *rows], left=1),
        f"(a failure every {mtbf}; a recovery of {recovery}, {report['recovery_from']};"
        " asynchronous: only the CPU part blocks, at the interval in use"
        f"{_SHARDED if advice['sharded'] is not None else ''})",
    ]


def _money(amount: float) -> str:
    return f"{'-' if amount < 0 else '+'}{DEFAULT.currency}{abs(amount):,.2f}"
