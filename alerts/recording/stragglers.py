"""Who made the others wait, and by what it was late."""

from __future__ import annotations

from ...agent.metrics.ranks import RANK, RUN
from ...verdict.lookthrough import LATE_BY
from ..config import Config
from ..promql import indented, labelled, lines, relabel, seconds
from ..rule import Record
from .names import MISSING, OPEN, late, late_steps, lateness, since_first_step, waited_for


def rules(config: Config, window: str) -> tuple[Record, ...]:
    by = config.by(*RANK, "family")
    charges = lines(_closed(config, window), labelled(open_charges(config, window), "open", "yes"))
    measured = f"sum {by} ({config.rate('whyidle_late_seconds_total', window)} > 0)"
    return (
        Record(lateness(window), relabel(measured, "family", "family", LATE_BY)),
        Record(
            late("run_rank_family", window),
            f"sum {by} (\n{indented(charges)}\n) > 0",
            why="The waits for stragglers, shared out over the late ranks as their lateness is; and waits that are "
            "open, over the ranks that are missing.",
        ),
        Record(late("run_rank", window), f"sum {config.by(*RANK)} ({late('run_rank_family', window)})"),
        Record(
            late_steps(window),
            f"sum {config.by(*RANK)} ({config.rate('whyidle_late_steps_total', window)} > 0)",
        ),
        Record(
            waited_for(window),
            f"sum {config.by(*RUN, 'family')} ({config.rate('whyidle_waited_for_seconds_total', window)} > 0)",
            why="The ranks themselves find out what made late whom they waited for, a few steps later.",
        ),
    )


def _closed(config: Config, window: str) -> str:
    mine, run = lateness(window), config.on(*RUN)
    return (
        f"{mine} / {run} group_left () sum {config.by(*RUN)} ({mine})\n"
        f'* {run} group_left () {since_first_step(window)}{{family="straggler"}}'
    )


def open_charges(config: Config, window: str) -> str:
    """Waits that are open, by the ranks that are missing and what keeps them."""
    run = config.on(*RUN)
    return (
        f"(0 * {MISSING} + 1) / {run} group_left () count {config.by(*RUN)} ({MISSING})"
        f" * {run} group_left () ({open_waits(config, window)})"
    )


def open_waits(config: Config, window: str) -> str:
    """Device-seconds per second in collectives that are open."""
    whole = seconds(window)
    return f'sum {config.by(*RUN)} (clamp_max({OPEN}{{phase="collective"}}, {whole})) / {whole}'
