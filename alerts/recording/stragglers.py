"""Which ranks made other ranks wait, and what made them late."""

from __future__ import annotations

from ...agent.metrics.ranks import RANK, RUN
from ...verdict.lookthrough import LATE_BY
from ..config import Config
from ..promql import indented, labelled, lines, relabel, seconds
from ..rule import Record
from .names import MISSING, OPEN, RUN_RANKS, late, lateness, since_first_step, spent, waited_for
from .shares import within


def rules(config: Config, window: str) -> tuple[Record, ...]:
    by, run = config.by(*RANK, "family"), config.on(*RUN)
    charges = indented(lines(_closed(config, window), labelled(open_charges(config, window), "open", "yes")))
    known = waited_for("run_node_family")
    return (
        Record(lateness(window), relabel(within(config, lateness(), window), "family", "family", LATE_BY)),
        Record(
            late("run_rank_family", window),
            f"sum {by} (\n{charges}\n)\n* {run} group_left () ({RUN_RANKS} / {run} {spent('run', window)}) > 0",
            why="The waits for stragglers, divided among the late ranks in proportion to their lateness, and the open "
            "waits, divided among the missing ranks. In GPUs that waited.",
        ),
        Record(late("run_rank", window), f"sum {config.by(*RANK)} ({late('run_rank_family', window)})"),
        Record(
            waited_for("run_family", window), f"sum {config.by(*RUN, 'family')} ({within(config, known, window)}) > 0"
        ),
    )


def _closed(config: Config, window: str) -> str:
    mine, run = lateness(window), config.on(*RUN)
    return (
        f"{mine} / {run} group_left () sum {config.by(*RUN)} ({mine})\n"
        f'* {run} group_left () {since_first_step(window)}{{family="straggler"}}'
    )


def open_charges(config: Config, window: str) -> str:
    """Open waits, shared among the missing ranks, by the family that keeps each of them busy."""
    run = config.on(*RUN)
    return (
        f"(0 * {MISSING} + 1) / {run} group_left () count {config.by(*RUN)} ({MISSING})"
        f" * {run} group_left () ({open_waits(config, window)})"
    )


def open_waits(config: Config, window: str) -> str:
    """Device-seconds of ranks in open collectives, by run."""
    return f'sum {config.by(*RUN)} (clamp_max({OPEN}{{phase="collective"}}, {seconds(window)}))'
