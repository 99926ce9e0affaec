"""Asks a Prometheus for what the ranks of a run spent of late, for bounds on a what-if."""

from __future__ import annotations

from typing import NamedTuple

from ...advisor.whatif.bounds import Spent
from ...alerts.recording.names import RUN_RANKS, spent
from .client import Labels, NoAnswer, Prometheus, over
from .runs import Chosen

LOOK_EVERY = 60
"""Seconds between two looks for a run's last sign of life: as often as it is recorded."""


class Window(NamedTuple):
    """What a run spent within a time."""

    spent: Spent
    seconds: float
    """Of the clock."""
    ago: float
    """Since its end."""
    accelerated: bool
    """Whether its ranks have devices of their own."""


def ask(asked: Prometheus, chosen: Chosen, since: float) -> Window:
    """The last ``since`` seconds of a run before its last sign of life. Raises NoAnswer."""
    end = last_sign(asked, chosen)
    start = max(chosen.start, end - since)
    series = chosen.of(spent("rank_cause"), 'cause!="startup"')
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
        chosen.end - end,
        any(one.get("device", "cpu") != "cpu" for one in seen),
    )


def last_sign(asked: Prometheus, chosen: Chosen) -> float:
    """The run's last sign of life: until when its live ranks were recorded."""
    back = round(chosen.end - chosen.start)
    query = f"max(max_over_time(timestamp({chosen.of(RUN_RANKS)})[{back}s:{LOOK_EVERY}s]))"
    found = asked.query(query, chosen.end)
    if not found:
        raise NoAnswer("no rank of this run lived in this time: look back further with --since")
    return min(found[0].value, chosen.end)


def _rank(labels: Labels) -> int:
    try:
        return int(labels.get("rank", ""))
    except ValueError:
        raise NoAnswer(f"a series of this run has no number as rank: {labels}") from None
