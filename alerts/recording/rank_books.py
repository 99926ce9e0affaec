"""The device-seconds of each rank, for dashboards that show ranks. Everything else is computed from sums by node.

There are many ranks and people look at few of them, so these rules run seldom. As in `books`, the increase since the
last evaluation is the difference of two last values, so that no second is lost between them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...agent.metrics.gpu import UNHOOKED_FAMILY
from ...agent.metrics.ranks import NODE_RANK, RANK
from ...agent.metrics.runs import RUN_PLACE
from ..config import Config, kept
from ..promql import indented
from ..rule import Record
from .books import EVIDENCE, grown, heard_before, last_value, matching, of_bills
from .names import RANK_PLACE, RUN_INSTANCE, UNKNOWN_RANKS, spent, total

RANK_TOTAL = total("rank_cause", "device_seconds")


def rules(config: Config) -> tuple[Record, ...]:
    """The rules, in the order in which they depend on each other."""
    return (*_totals(config), _unknown(config), *_increases(config))


def place(config: Config) -> Record:
    return Record(
        RANK_PLACE,
        f"topk {config.by('instance', *RANK)} (\n"
        f"  1, group {config.by('instance', *NODE_RANK)} ({last_value(config, 'whyidle_rank_info')})\n)",
        why="The node of each rank. Only one, because a pod that restarts may have two names for a while.",
    )


def _totals(config: Config) -> Iterator[Record]:
    rank = config.on(*NODE_RANK)
    counted = last_value(config, "whyidle_device_seconds_total", f'family!="{UNHOOKED_FAMILY}"')
    yield Record(
        RANK_TOTAL,
        f"max {config.by(*NODE_RANK, 'cause', 'family')} ({counted})",
    )
    counted_idle = f"({last_value(config, 'whyidle_compute_idle_seconds_total')} > 0)"
    places = f"{config.on('instance', *RANK)} group_left (node) {RANK_PLACE}"
    idle = f"max {config.by(*NODE_RANK)} (\n  {counted_idle}\n  * {places}\n)"
    compute = f'{RANK_TOTAL}{{cause="compute"}}'
    yield Record(
        RANK_TOTAL,
        f"{idle}\n- clamp_min(\n{indented(idle)}\n  - {rank} {compute}, 0\n)",
        {"cause": "host", "family": "host", **EVIDENCE},
        why="Compute during which the GPU's own counters show an idle GPU, at most all compute. It counts as host.",
    )


def _unknown(config: Config) -> Record:
    at = config.ranks_interval
    return Record(
        UNKNOWN_RANKS,
        f"group {config.by(*RUN_PLACE)} (\n  {RUN_INSTANCE}\n"
        f"  unless {config.on(*RUN_PLACE)} {RUN_INSTANCE} offset {at}\n"
        f"  unless {config.on('instance')} {heard_before(config, at)}\n)",
        why="Runs whose ranks have no series at the last evaluation, and whose agent did not answer then either.",
    )


def _increases(config: Config) -> Iterator[Record]:
    missed, on = kept(config.ranks_interval), config.on(*RUN_PLACE)
    yield Record(
        spent("rank_cause"),
        f"{of_bills(grown(RANK_TOTAL, missed, on, UNKNOWN_RANKS))} != 0",
        why="Device-seconds since the last evaluation. A counter that fell by more than half has started again from 0.",
    )
    yield Record(
        spent("rank_cause"),
        f"-({grown(matching(RANK_TOTAL, EVIDENCE), missed, on, UNKNOWN_RANKS)}) != 0",
        {"cause": "compute", "family": "compute", **EVIDENCE},
        why="Compute that counts as host is subtracted from compute.",
    )
