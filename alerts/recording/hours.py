"""Sums of an hour, recorded once an hour, by which dashboards find the worst nodes and ranks of a long time range.

What was lost is shown as the sum of all increases: the sums of hours only decide whose increases a panel reads. So an
hour that is missing or that overlaps another, because the server was restarted, does not make a bill wrong.
"""

from __future__ import annotations

from ...agent.metrics.ranks import NODE_RANK
from ..config import Config
from ..promql import indented, lines, seconds
from ..rule import Record
from .corroboration import FAMILIES
from .names import EVIDENCE_BY_NODE, IDLE_BY_RANK, LATE_BY_RANK, LOST_BY_NODE, evidence, hourly, spent

HOUR = "1h"


def rules(config: Config) -> tuple[Record, ...]:
    signals = lines(*(f"count_over_time({evidence(family, config.window)}[{HOUR}])" for family in FAMILIES))
    idle = f'{spent("rank_cause")}{{family!="compute"}}'
    return (
        Record(
            hourly(LOST_BY_NODE),
            f"sum_over_time({LOST_BY_NODE}[{HOUR}])",
            why="A month of a thousand nodes has 44 million increases. Prometheus does not read more than 50 million "
            "samples for one query.",
        ),
        Record(hourly(LATE_BY_RANK), f"sum_over_time({LATE_BY_RANK}[{HOUR}])"),
        Record(
            hourly(IDLE_BY_RANK),
            f"sum {config.by(*NODE_RANK)} (sum_over_time({idle}[{HOUR}]))",
            why="Device-seconds that were not compute.",
        ),
        Record(
            hourly(EVIDENCE_BY_NODE),
            f"{seconds(config.details_interval)} * (\n{indented(signals)}\n)",
            why="The seconds in which each signal of a node agreed.",
        ),
    )
