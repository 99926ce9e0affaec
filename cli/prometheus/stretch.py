"""Asks a Prometheus for what a run did between two moments, to compare it with another run or another time."""

from __future__ import annotations

from math import ceil

from ...advisor.compare.recorded import Stretch, Window, looked_through
from ...alerts.recording.names import RUN_RANKS, billed
from ...ledger.causes import OUTSIDE_LOOP
from ...verdict.recent import SAVING
from . import starts
from .client import NoAnswer, Prometheus, over
from .runs import SECONDS, Chosen

WINDOWS = 20
"""Into how many windows a time is cut: as many as an interval needs, and some more."""
EVALUATION = 60.0
"""Seconds: no window is shorter than it takes until what was scraped is recorded."""
_BUCKETS = '__name__=~"run:whyidle_step_seconds_bucket:rate[0-9a-z]+"'
_SAVES = 'cause=~"' + "|".join(SAVING) + '"'


def ask(asked: Prometheus, chosen: Chosen) -> Stretch:
    """Raises NoAnswer."""
    apart = max(EVALUATION, (chosen.end - chosen.start) // (WINDOWS * EVALUATION) * EVALUATION)
    count = int((chosen.end - chosen.start) // apart)
    if not count:
        raise NoAnswer(f"the time that is looked at must be {EVALUATION:.0f} s or longer")
    first = chosen.end - count * apart
    window, whole = over(apart), over(chosen.end - first)

    def each(expression: str) -> list[tuple[dict[str, str], dict[int, float]]]:
        courses = asked.range(expression, first + apart, chosen.end, apart)
        return [(one.labels, {round((at - first) / apart) - 1: value for at, value in one.points}) for one in courses]

    def number(expression: str) -> float:
        return max(0.0, *(value for _, value in asked.query(expression, chosen.end)), 0.0)

    spent: list[dict[str, float]] = [{} for _ in range(count)]
    series = chosen.of(SECONDS, f'cause!~"{OUTSIDE_LOOP}"')
    for labels, points in each(f"sum by (cause) (sum_over_time({series}{window}))"):
        for place, value in points.items():
            spent[place][labels.get("cause", "")] = max(0.0, value)
    steps = dict[int, float]()
    counter = chosen.of("whyidle_steps_total")
    for _, points in each(f"sum (increase({counter}{window}))"):
        steps.update(points)
    seen = asked.series(chosen.of("whyidle_rank_info"), first, chosen.end)
    # Two windows may have been recorded, one after the other. Their series differ in the name alone, which a function
    # of time would drop: so first one at each moment, then the sum over time.
    buckets = f"sum by (le) ({{{chosen.matchers}, {_BUCKETS}}})"
    buckets = f"sum_over_time(({buckets})[{round(chosen.end - first)}s:{EVALUATION:.0f}s])"
    quantiles = {name: number(f"histogram_quantile({q}, {buckets})") for name, q in (("p50", 0.5), ("p99", 0.99))}
    saves = chosen.of("whyidle_checkpoints_total", 'kind="save"')
    saving = chosen.of("whyidle_device_seconds_total", _SAVES)
    begun = starts.ask(asked, chosen, first, chosen.end)

    def by_family(series: str) -> dict[str, float]:
        answer = asked.query(f"sum by (family) (sum_over_time({chosen.of(series)}{whole}))", chosen.end)
        return {labels.get("family", ""): value for labels, value in answer}

    return Stretch(
        run=chosen.run,
        windows=[Window(seconds, steps.get(place, 0.0)) for place, seconds in enumerate(spent)],
        steps=number(f"max (increase({counter}{whole}))"),
        ranks=ceil(number(f"max_over_time({chosen.of(RUN_RANKS)}{whole})")),
        world_size=max((int(one["world_size"]) for one in seen if one.get("world_size", "").isdecimal()), default=0),
        samples=number(f"sum (increase({chosen.of('whyidle_samples_total')}{whole}))"),
        quantiles={name: value for name, value in quantiles.items() if value > 0},
        saves=round(number(f"max (increase({saves}{whole}))")),
        saving=number(f"max (sum by (rank) (increase({saving}{whole})))"),
        seconds=chosen.end - first,
        looked_through=looked_through(by_family(billed("run_node_family")), by_family(SECONDS)),
        starts=begun,
        notes=[begun.why_not] if begun.why_not else [],
    )
