"""Bills: the device-seconds since the last evaluation by family, each counted once, with look-through.

Their sum over a time range is the bill. The bills of runs, nodes and clusters agree, since all are sums of the same
seconds. Phases that are still open are billed when they end.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...agent.metrics.gpu import UNHOOKED_FAMILY
from ...agent.metrics.ranks import RANK, RUN
from ..config import Config
from ..promql import indented, labelled, nested, seconds
from ..rule import Record
from .names import (
    LATE_BY_RANK,
    LOST_BY_NODE,
    ON_CPUS,
    PRODUCTIVE_ON_CPUS,
    UNUSED_GPUS,
    UNUSED_NOW,
    billed,
    lateness,
    since_first_step,
    spent,
    waited_for,
)
from .ranks import unused
from .shares import PRODUCTIVE
from .verdict import WAITS


def rules(config: Config) -> tuple[Record, ...]:
    """The rules of bills. They must come after those of the long window, whose split of waits they use."""
    return (*_billed(config), _late(config))


def _billed(config: Config) -> Iterator[Record]:
    ticks, place = spent("run_node_cause"), (*RUN, "node")
    known = waited_for("run_node_family")
    waits = f'sum {config.by(*place)} ({ticks}{{family=~"{WAITS}"}})'
    resolved = f"sum {config.by(*place)} ({known})"
    left = f"({waits} - {config.on(*place)} {resolved}\n  or {waits}\n  or -({resolved}))"
    parts = nested(
        f'{ticks}{{family!~"{WAITS}|{UNHOOKED_FAMILY}"}}',
        labelled(known, "part", "resolved"),
        *(
            labelled(
                labelled(f"{left}\n* {config.on(*RUN)} group_left () {_part(config, family)}", "family", family),
                "part",
                "unresolved",
            )
            for family in WAITS.split("|")
        ),
    )
    yield Record(
        billed("run_node_family"),
        f"sum {config.by(*place, 'family')} (\n{indented(parts)}\n) != 0",
        why="The reason for a wait is known some steps after it. So the unexplained rest may be less than 0 in one "
        "evaluation, but the sum over evaluations is right.",
    )
    yield Record(billed("run_family"), f"sum {config.by(*RUN, 'family')} ({billed('run_node_family')})")
    yield Record(billed("cluster_family"), f"sum {config.by('family')} ({billed('run_family')})")
    yield Record(
        UNUSED_GPUS,
        f"{UNUSED_NOW} * {seconds(config.interval)}",
        why="These GPUs have no ledger. So this is the number now, times the interval.",
    )
    yield Record(
        ON_CPUS,
        f"{billed('run_family')} * {config.on(*RUN)} group_left () ({unused(config, config.interval)} > 0)",
        {"part": "on_cpus"},
        why="The part of the bill that is beside unused GPUs, in proportion to the ranks. Whoever adds the seconds of "
        "these GPUs to the bill must subtract it. The label lets one sum have both.",
    )
    yield Record(
        PRODUCTIVE_ON_CPUS,
        f"sum {config.by(*RUN)} ({spent('run_cause')}{{{PRODUCTIVE}}})\n"
        f"* {config.on(*RUN)} ({unused(config, config.interval)} > 0)",
        why="Compute and rollouts beside unused GPUs. Whoever computes goodput subtracts their sum over the time "
        "range, because the run may have used its GPUs in another part of it.",
    )
    yield Record(LOST_BY_NODE, f'sum {config.by("node")} ({billed("run_node_family")}{{family!="compute"}})')


def _part(config: Config, family: str) -> str:
    """The part of a run's waits that belongs to a family, in the long window."""
    waits, by, on = since_first_step(config.long_window), config.by(*RUN), config.on(*RUN)
    whole = f'sum {by} ({waits}{{family=~"{WAITS}"}})'
    return f'(sum {by} ({waits}{{family="{family}"}}) / {on} ({whole} > 0))'


def _late(config: Config) -> Record:
    run = config.on(*RUN)
    waits = f'sum {config.by(*RUN)} ({spent("run_node_cause")}{{family="straggler"}})'
    return Record(
        LATE_BY_RANK,
        f"sum {config.by(*RANK)} ({lateness()})\n/ {run} group_left () sum {config.by(*RUN)} ({lateness()})\n"
        f"* {run} group_left () {waits}",
        why="The waits for stragglers, divided among the late ranks in proportion to their lateness.",
    )
