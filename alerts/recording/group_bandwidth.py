"""The bandwidth of single process groups, compared with that of the links between their nodes or GPUs."""

from __future__ import annotations

from ...agent.metrics.ranks import RUN
from ..config import Config
from ..promql import indented, seconds
from ..rule import Record
from .names import (
    GROUP_LINK,
    NODE_LINK,
    NODE_NVLINK,
    RUN_RANKS,
    group_bus_bandwidth,
    group_transfer_bandwidth,
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
    group = config.on(*RUN, "group")
    moved, waits = (
        _per_rank(config, f"sum {by} ({config.rate(f'whyidle_run_group_{what}_total', window)})")
        for what in ("bus_bytes", "transfer_seconds")
    )
    return (
        Record(
            group_bus_bandwidth(window),
            f"{moved}\n> 0",
            why="Per second of the whole time, and per rank of the run.",
        ),
        Record(
            now,
            f"{group_bus_bandwidth(window)}\n/ {group} (\n{indented(waits)}\n  >= {LEAST_WAITS:g}\n)\n"
            f"<= {group} last_over_time({GROUP_LINK}[{config.details_kept}])",
            why="The bytes of a group's collectives, divided by the time that ranks wait in its transfers. If the "
            "result exceeds the group's share of the links, compute hides a part of the transfers and their speed is "
            "not known. Groups within a node without NVLink have no link.",
        ),
        Record(
            group_transfer_bandwidth("best"),
            f"quantile_over_time({BEST}, {now}[{config.bandwidth_reference}])",
            why="A quantile, because a single fast window would determine the maximum for a day.",
        ),
    )


def _per_rank(config: Config, rate: str) -> str:
    """A rate by group, per rank of the run and per second since its first step."""
    run, window = config.on(*RUN), config.window
    return f"{rate}\n/ {run} group_left () {RUN_RANKS}\n* {run} group_left () ({seconds(window)} / {stepping(window)})"


def links(config: Config) -> Record:
    across = f"min_over_time({config.series('whyidle_run_groups_across_nodes')}[{config.window}])"
    of_node = f"{config.on('node')} group_left ()"
    return Record(
        GROUP_LINK,
        f"min {config.by(*RUN, 'group')} (\n"
        f"  1 / ({across} > 0) * {of_node} {NODE_LINK}\n"
        f"  or ({across} == 0) + {of_node} {NODE_NVLINK}\n)",
        why="A group's share of the links of its slowest node. All groups with one name communicate at the same time. "
        "Within a node, a GPU has its NVLinks for itself. "
        "The minimum over time, because at the start of a run not all members are known yet.",
    )


def waiting(config: Config) -> Record:
    waits = config.rate("whyidle_run_group_transfer_seconds_total", config.window)
    return Record(
        waiting_group(config.window),
        f"topk {config.by(*RUN)} (1, sum {config.by(*RUN, 'group')} ({waits}) > 0)",
        why="The group in whose transfers a run waits most. Only the nodes of its members count as evidence.",
    )
