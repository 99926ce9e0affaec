"""The verdict on each run. The rules and thresholds are those of `whyidle report`, in verdict/verdict.py."""

from __future__ import annotations

from ...agent.metrics.ranks import RUN
from ...ledger.causes import OUTSIDE_LOOP
from ...verdict.unused import HEADLINE
from ..config import Config
from ..promql import any_of, indented, labelled, lines
from ..rule import Record
from .corroboration import FAMILIES
from .names import (
    MISSING,
    OPEN,
    RUN_RANKS,
    charged,
    confirmed,
    culprit,
    device_seconds,
    late,
    leading,
    since_first_step,
    spent,
    too_short,
    verdict,
    waited_for,
)
from .ranks import unused
from .stragglers import open_charges, open_waits

WAITS = "straggler|pipeline"
"""The families that are looked through: waits for ranks that have a reason of their own to be late."""


def basis(config: Config, window: str) -> tuple[Record, ...]:
    """The seconds that a verdict is computed from. The rules of stragglers need them too."""
    by = config.by(*RUN, "family")
    return (
        Record(
            since_first_step(window),
            f'sum {by} ({spent("run_cause", window)}{{cause!~"{OUTSIDE_LOOP}"}})\n'
            f"or {config.on(*RUN, 'family')} 0 * {spent('run_family', window)}",
            why="Without startup, the time before the first step, and without other time outside the loop.",
        ),
    )


def conclusion(config: Config, window: str) -> tuple[Record, ...]:
    """The family that a verdict names, and the rank that is responsible for it."""
    return (
        Record(
            charged(window),
            _charged(config, window),
            why="Waits for late ranks and for other pipeline stages count under what made those late, as far as the "
            "ranks have found it out. The rest counts as straggler and pipeline. This is a conclusion, not a "
            "measurement.",
        ),
        Record(
            too_short(window),
            _too_short(config, window),
            why="Too few steps in its life, or too few seconds in the window. Not if a rank is missing.",
        ),
        Record(
            leading(window),
            _leading(config, window),
            why="The largest family other than compute if it is large enough, otherwise compute. Time without a known "
            "cause leads only if no known family is large enough, or while the loop waits for a batch. Ranks that use "
            "no GPU, although they were given some, come before any family, and before there are enough steps.",
        ),
        Record(
            culprit(window),
            _culprit(config, window),
            why="The rank that was late most because of the verdict's family. If more than half of all ranks are late "
            "because of it, they take turns, and no rank is named.",
        ),
    )


def _too_short(config: Config, window: str) -> str:
    """The steps and seconds of runs that are too short. The last values count after the end of a run."""
    by, run = config.by(*RUN), config.on(*RUN)
    ranks = f"max_over_time({RUN_RANKS}[{window}])"
    steps = f"sum {by} (last_over_time({config.series('whyidle_run_steps_total')}[{window}]))"
    few = f"{steps} < {run} {config.least_steps:g} * {ranks}"
    brief = f"{steps} and {run} sum {by} ({since_first_step(window)}) < {run} {config.least_seconds:g} * {ranks}"
    return f"(({few})\nor ({brief}))\nunless {run} {MISSING}"


def _leading(config: Config, window: str) -> str:
    run, found, least = config.on(*RUN), charged(window), f"{config.verdict_share:g}"
    unknown = f'{found}{{family="unattributed"}}'
    known = f'({found}{{family!~"compute|unattributed"}} or {unknown} and {run} {OPEN}{{phase="data"}})'
    parts = (
        f"topk {config.by(*RUN)} (1, {known} >= {least})",
        f"or {run} {unknown} >= {least}",
        f'or {run} {found}{{family="compute"}}',
    )
    on_cpus = f"{unused(config, window)} >= {least}"
    judged = f"({chr(10).join(parts)})\nunless {run} {too_short(window)}"
    return f"{labelled(on_cpus, 'family', HEADLINE)}\nor {run} ({judged})"


def _charged(config: Config, window: str) -> str:
    spent, run = since_first_step(window), config.on(*RUN)
    parts = lines(
        f'{spent}{{family!~"{WAITS}"}}',
        *_waits(config, window),
        labelled(f"sum {config.by(*RUN, 'family')} ({open_charges(config, window)})", "part", "missing"),
        labelled(
            labelled(f"-({open_waits(config, window)}) and {run} {MISSING}", "family", "communication"), "part", "open"
        ),
    )
    return (
        f"clamp_min(sum {config.by(*RUN, 'family')} (\n{indented(parts)}\n), 0)\n"
        f"/ {run} group_left ()\n(sum {config.by(*RUN)} ({spent}) > 0)"
    )


def _waits(config: Config, window: str) -> tuple[str, str]:
    """Waits by the family that made the other ranks late, and the waits for which that is not known.

    What made a rank late is known only some steps after the wait. So at times more is known than there are waits in
    the window. Never more than the waits is charged.
    """
    run = config.on(*RUN)
    waits, known = f'{since_first_step(window)}{{family=~"{WAITS}"}}', waited_for("run_family", window)
    whole, resolved = f"sum {config.by(*RUN)} ({waits})", f"sum {config.by(*RUN)} ({known})"
    unknown = f"clamp_min(1 - {resolved} / ({whole} > 0), 0)"
    return (
        labelled(f"{known} * {run} group_left () clamp_max({whole} / {resolved}, 1)", "part", "resolved"),
        labelled(f"({waits} * {run} group_left () {unknown}\nor {waits})", "part", "unresolved"),
    )


def _culprit(config: Config, window: str) -> str:
    run = config.on(*RUN)
    mine = f"({late('run_rank_family', window)} and {config.on(*RUN, 'family')} {leading(window)})"
    late_ranks = f"{mine}\n>= {run} group_left () {config.late_share:g} * {device_seconds('run', window)}"
    return (
        f"topk {config.by(*RUN)} (1,\n{indented(late_ranks)}\n)\n"
        f"unless {run} count {config.by(*RUN)} (\n{indented(late_ranks)}\n) > {run} 0.5 * {RUN_RANKS}"
    )


def rules(config: Config, window: str) -> tuple[Record, ...]:
    """The verdict, with its corroboration by node counters."""
    name, found, on = verdict(window), leading(window), config.on(*RUN, "family")
    kept = config.details_kept
    agreed = f"(last_over_time({confirmed(f'ratio{window}')}[{kept}]) >= {config.confirmed_share:g})"
    refutable = any_of(FAMILIES)
    return (
        Record(name, f"{found} and {on} {agreed}", {"corroboration": "confirmed"}),
        Record(name, f'{found}{{family=~"{refutable}"}} unless {on} {agreed}', {"corroboration": "unconfirmed"}),
        Record(
            name,
            f'{found}{{family!~"{refutable}"}}',
            {"corroboration": "none_needed"},
            why="No counter of a node could confirm these families. The ranks' own clocks are the only evidence.",
        ),
    )
