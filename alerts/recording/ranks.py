"""Which ranks are live, in which phase they are, and which are missing. The other rules join these series."""

from __future__ import annotations

from ...agent.metrics.ranks import NODE_RANK, RANK, RUN
from ...ledger.cause_rows import PHASE_ROWS
from ...ledger.causes import CAUSE_FAMILY, PHASE_CAUSE
from ..config import Config
from ..promql import labelled, relabel
from ..rule import Record
from .names import (
    INSTANCE_NODE,
    MISSING,
    NODE_RANKS,
    NOTEBOOKS,
    OPEN,
    RUN_GPUS,
    RUN_NODE_RANKS,
    RUN_RANKS,
    TARGET_NODE,
    UNUSED,
    UNUSED_NOW,
)

OPEN_CAUSE: dict[str, str] = {**PHASE_CAUSE, "data": "unattributed"}
"""Phase -> the cause under which it counts while it is open, as in the report. An open wait for data cannot be split
yet."""
_KEEPS = {row.name: row.keeps for row in PHASE_ROWS if row.keeps != "straggler"}


def rules(config: Config) -> tuple[Record, ...]:
    live, by_node = config.series("whyidle_run_ranks"), config.by("instance", "node")
    return (
        Record(
            INSTANCE_NODE,
            f"group {by_node} ({live})\nor\ngroup {by_node} ({config.series('whyidle_node_info')})",
            why="The node of each target, because a node's counters do not have the label node.",
        ),
        target_node(config),
        Record(
            RUN_NODE_RANKS,
            f"sum {config.by(*RUN, 'node')} ({live}) > 0",
            why="The number of live ranks.",
        ),
        Record(RUN_RANKS, f"sum {config.by(*RUN)} ({RUN_NODE_RANKS})"),
        Record(NODE_RANKS, f"sum {config.by('node')} ({RUN_NODE_RANKS})"),
        *_unused(config),
        open_phases(config),
        Record(
            MISSING,
            _missing(config),
            why="How long others have waited in a collective for a rank that has not entered it, and what the rank "
            "does meanwhile. An agent finds missing ranks of its own node only. This rule also finds those of other "
            "nodes.",
        ),
    )


def unused(config: Config, window: str) -> str:
    """The last share of unused ranks of runs that have seconds in a window, ended ones included."""
    return f"last_over_time({UNUSED}[{config.beyond(window)}])"


def _unused(config: Config) -> tuple[Record, ...]:
    seen, run, by = config.series("whyidle_rank_unused_gpus"), config.on(*RUN), config.by(*RUN, "node")
    ranks = f"count {config.by(*RUN)} (group {config.by(*NODE_RANK)} ({seen}))"
    given = f"max {by} ({seen} > 1) or sum {by} ({seen})"
    gpus = f"{config.series('whyidle_run_spare_gpus')} or {config.on(*RUN, 'node')} ({given})"
    return (
        Record(
            UNUSED,
            f"{ranks} / {run} {RUN_RANKS}\nor {run} 0 * {RUN_RANKS}",
            why="The share of the ranks that train on the CPU although they were given GPUs.",
        ),
        Record(
            UNUSED_NOW,
            f"sum {config.by(*RUN)} ({gpus}) > 0",
            why="By node: GPUs that ranks see and none uses, otherwise those of ranks on the CPU. Ranks of a node see "
            "the same GPUs, unless each sees one.",
        ),
        Record(
            RUN_GPUS,
            f"{RUN_RANKS} * {run} (1 - {UNUSED}) + {run} {UNUSED_NOW}\nor {run} {RUN_RANKS}",
        ),
    )


def target_node(config: Config) -> Record:
    names, known = config.series("whyidle_node_info"), config.series("whyidle_build_info")
    return Record(
        TARGET_NODE,
        f"group {config.by('job', 'instance', 'node')} ({names})\n"
        f"or {config.on('job', 'instance')}\ngroup {config.by('job', 'instance')} ({known})",
        why="The node of each agent, from which alerts take the node's name.",
    )


def open_phases(config: Config) -> Record:
    by = config.by(*NODE_RANK, "phase")
    phases = f"max {by} (\n  {config.series('whyidle_phase_open_seconds')} > {config.open_seconds:g}\n)"
    return Record(
        OPEN,
        relabel(relabel(phases, "cause", "phase", OPEN_CAUSE), "family", "cause", _open_families()),
        why="Long open phases, with the cause that they count as while they are open.",
    )


def _open_families() -> dict[str, str]:
    return {**{cause: CAUSE_FAMILY[cause] for cause in OPEN_CAUSE.values()}, "interactive": NOTEBOOKS}


def _missing(config: Config) -> str:
    run, rank = config.by(*RUN), config.by(*RANK)
    # Not the family of the phase: a rank that waits for a computing rank waits for a straggler.
    keeps = relabel(labelled(f'{OPEN}{{phase!="collective"}}', "family", "straggler"), "family", "phase", _KEEPS)
    told = f"max {rank} ({config.series('whyidle_collective_missing_seconds')} > {config.open_seconds:g})"
    return "\n".join(
        (
            f"max {config.by(*RANK, 'family')} (",
            f"  0 * {keeps}",
            f'  + {config.on(*RUN)} group_left () max {run} ({OPEN}{{phase="collective"}})',
            ")",
            f"or {config.on(*RANK)} {labelled(told, 'family', 'straggler')}",
        )
    )
