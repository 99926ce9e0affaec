"""The bandwidth of single process groups, compared with that of the links between their nodes."""

from __future__ import annotations

from ...agent.metrics.ranks import RUN
from ..config import Config
from ..promql import indented, seconds
from ..rule import Record
from .names import (
    GROUP_LINK,
    NODE_LINK,
    RUN_RANKS,
    group_bus_bandwidth,
    group_transfer_bandwidth,
    since_first_step,
    stepping,
    waiting_group,
)

LEAST_WAITS = 0.01
"""The share of the time that waits in transfers must take, so that the bandwidth of transfers is computed from them."""
BEST = 0.9
"""The quantile of a run's bandwidth that counts as its best."""


def rules(config: Config) -> tuple[Record, ...]:
    window = config.window
    now, by = group_transfer_bandwidth(f"rate{window}"), config.by(*RUN, "group")
    run, group = config.on(*RUN), config.on(*RUN, "group")
    moved = f"sum {by} ({config.rate('whyidle_run_group_bus_bytes_total', window)}) > 0"
    return (
        Record(
            group_bus_bandwidth(window),
            f"({moved})\n/ {run} group_left () {RUN_RANKS}\n"
            f"* {run} group_left () ({seconds(window)} / {stepping(window)})",
            why="Per second of the whole time, and per rank of the run.",
        ),
        Record(
            now,
            f"{group_bus_bandwidth(window)}\n/ {group} (\n{indented(_waits(config))}\n)\n"
            f"<= {group} last_over_time({GROUP_LINK}[{config.details_kept}])",
            why="The bytes of a group's collectives, divided by the time that ranks wait in its transfers. If the "
            "result exceeds the group's share of the links, compute hides a part of the transfers and their speed is "
            "not known. Groups within a node use no link.",
        ),
        Record(
            group_transfer_bandwidth("best"),
            f"quantile_over_time({BEST}, {now}[{config.bandwidth_reference}])",
            why="A quantile, because a single fast window would determine the maximum for a day.",
        ),
    )


def _waits(config: Config) -> str:
    """Waits in transfers by group, as a share of the run's time."""
    waits = config.increase("whyidle_run_group_transfer_seconds_total", config.window)
    whole = f"sum {config.by(*RUN)} ({since_first_step(config.window)})"
    return f"sum {config.by(*RUN, 'group')} ({waits})\n/ {config.on(*RUN)} group_left () {whole} >= {LEAST_WAITS:g}"


def links(config: Config) -> Record:
    across = config.series("whyidle_run_groups_across_nodes")
    return Record(
        GROUP_LINK,
        f"min {config.by(*RUN, 'group')} (\n"
        f"  1 / (min_over_time({across}[{config.window}]) > 0) * {config.on('node')} group_left () {NODE_LINK}\n)",
        why="A group's share of the links of its slowest node. All groups with one name communicate at the same time. "
        "The minimum over time, because at the start of a run not all members are known yet.",
    )


def waiting(config: Config) -> Record:
    waits = config.rate("whyidle_run_group_transfer_seconds_total", config.window)
    return Record(
        waiting_group(config.window),
        f"topk {config.by(*RUN)} (1, sum {config.by(*RUN, 'group')} ({waits}) > 0)",
        why="The group in whose transfers a run waits most. Only the nodes of its members count as evidence.",
    )
