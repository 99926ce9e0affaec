"""Sums of an hour, recorded once an hour, by which dashboards find the worst nodes and ranks of a long time range.

They only decide which series a panel reads. What it shows is the sum of all increases. So an hour that is missing or
that overlaps another, because the server was restarted, does not make a figure wrong.
"""

from __future__ import annotations

from ...agent.metrics.ranks import RANK
from ..config import Config
from ..rule import Record
from .names import IDLE_BY_RANK, LATE_BY_RANK, LOST_BY_NODE, hourly, spent

HOUR = "1h"


def rules(config: Config) -> tuple[Record, ...]:
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
            f"sum {config.by(*RANK, 'node')} (sum_over_time({idle}[{HOUR}]))",
            why="Device-seconds that were not compute.",
        ),
    )
