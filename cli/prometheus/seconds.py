"""Asks Prometheus where the recent time of a run's ranks went, for the bounds of a what-if question."""

from __future__ import annotations

import math
from typing import NamedTuple

from ...advisor.whatif.bounds import Spent
from ...alerts.config import DEFAULT
from ...alerts.promql import seconds as length
from ...alerts.recording.names import RUN_RANKS, spent
from ...ledger.causes import OUTSIDE_LOOP
from .client import Labels, NoAnswer, Prometheus, over
from .runs import Chosen

LOOK_EVERY = 60
"""The resolution in seconds for a run's last sign of life, which is the interval at which it is recorded."""
RECORDED_EVERY = length(DEFAULT.ranks_interval)
"""Seconds between two records of what ranks have spent."""


class Window(NamedTuple):
    """Where the time of a run went within a time range."""

    spent: Spent
    seconds: float
    """The length of the range, in wall time."""
    ago: float
    """The seconds since the run's last sign of life."""
    accelerated: bool
    """Whether any rank has an accelerator."""


def ask(asked: Prometheus, chosen: Chosen, since: float) -> Window:
    """About the last ``since`` seconds of a run: whole intervals at which the seconds of ranks are recorded, up to the
    last one. So the steps are of the same time. Raises NoAnswer."""
    sign = last_sign(asked, chosen)
    series = chosen.of(spent("rank_cause"), f'cause!~"{OUTSIDE_LOOP}"')
    # There are many of these series: over all the time in which a run is looked for, a server may refuse them.
    near = chosen._replace(start=sign - max(since, 2 * RECORDED_EVERY), end=min(chosen.end, sign + 2 * RECORDED_EVERY))
    end = _last(asked, near, series)
    if end is None:
        raise NoAnswer(f"what the ranks of this run spend is recorded every {RECORDED_EVERY / 60:.0f} min, and was not"
                       " yet: ask again later, or look back further with --since")  # fmt: skip
    start = end - max(1, math.ceil(since / RECORDED_EVERY)) * RECORDED_EVERY
    window = over(end - start)
    of_rank: dict[int, dict[str, float]] = {}
    for labels, value in asked.query(f"sum by (rank, cause) (sum_over_time({series}{window}))", end):
        of_rank.setdefault(_rank(labels), {})[labels.get("cause", "")] = max(0.0, value)
    ranks = {rank: seconds for rank, seconds in of_rank.items() if sum(seconds.values()) > 0}
    if not ranks:
        raise NoAnswer("no rank of this run has finished a step in this time: look back further with --since")
    first = min(ranks)
    counter = chosen.of("whyidle_steps_total", f'rank="{first}"')
    steps = sum(value for _, value in asked.query(f"increase({counter}{window})", end))
    if steps < 1:
        raise NoAnswer(f"rank {first} of this run has finished no step in this time: look back further with --since")
    seen = asked.series(chosen.of("whyidle_rank_info"), start, end)
    world = max((int(one["world_size"]) for one in seen if one.get("world_size", "").isdecimal()), default=0)
    return Window(
        Spent([ranks[rank] for rank in sorted(ranks)], round(steps), max(0, world - len(ranks))),
        end - start,
        chosen.end - sign,
        any(one.get("device", "cpu") != "cpu" for one in seen),
    )


def last_sign(asked: Prometheus, chosen: Chosen) -> float:
    """The run's last sign of life: the last time at which its live ranks were recorded."""
    last = _last(asked, chosen, chosen.of(RUN_RANKS))
    if last is None:
        raise NoAnswer("no rank of this run was alive in this time: look back further with --since")
    return last


def _last(asked: Prometheus, chosen: Chosen, series: str) -> float | None:
    """When any of the series was recorded last."""
    back = round(chosen.end - chosen.start)
    found = asked.query(f"max(max_over_time(timestamp({series})[{back}s:{LOOK_EVERY}s]))", chosen.end)
    return min(found[0].value, chosen.end) if found else None


def _rank(labels: Labels) -> int:
    try:
        return int(labels.get("rank", ""))
    except ValueError:
        raise NoAnswer(f"a series of this run has no number as rank: {labels}") from None
