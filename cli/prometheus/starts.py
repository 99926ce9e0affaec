"""Asks a Prometheus for the startups and restores of a run between two moments."""

from __future__ import annotations

from ...advisor.compare.starts import STARTING, Counter, RankStarts, Starts, starts_of
from .client import Labels, Prometheus, over
from .runs import Chosen

RECENT = 1200.0
"""Seconds: somewhat longer than agents export an ended rank."""
RANK = "instance, owner, run, rank"
_STARTING = 'phase=~"' + "|".join(STARTING) + '"'


def ask(asked: Prometheus, chosen: Chosen, first: float, last: float) -> Starts:
    """The startups and restores between two moments, unix seconds. Raises NoAnswer."""
    whole = over(last - first)
    info = chosen.of("whyidle_rank_info")
    process = "rank, attempt, node, pid"
    there = {_key(labels) for labels, _ in asked.query(f"group by ({process}) ({info})", first)}
    seen = asked.query(f"group by ({process}) (last_over_time({info}{whole}))", last)
    attempts: dict[int, set[int]] = {}
    for labels, _ in seen:
        begun = attempts.setdefault(_number(labels, "rank"), set())
        if _key(labels) not in there:
            begun.add(_number(labels, "attempt"))

    def by_rank(counter: str, window: str, moment: float) -> dict[int, float]:
        # If a node had two agents, the one that counted more has counted everything that the other one did.
        node = f"on ({RANK}) group_left (node) group by ({RANK}, node) (last_over_time({info}{window}))"
        of_agents = f"sum by ({RANK}) (last_over_time({counter}{window})) * {node}"
        query = f"sum by (rank) (max by (node, rank) ({of_agents}))"
        return {_number(labels, "rank"): value for labels, value in asked.query(query, moment)}

    counters = [
        (by_rank(chosen.of(metric, matcher), over(RECENT), first), by_rank(chosen.of(metric, matcher), whole, last))
        for metric, matcher in (
            ("whyidle_device_seconds_total", 'cause="startup"'),
            ("whyidle_device_seconds_total", 'cause="checkpoint_read"'),
            ("whyidle_checkpoints_total", 'kind="load"'),
        )
    ]
    scraped = counters[0][0]  # every rank has a startup

    def of(rank: int) -> list[Counter]:
        missing = 0.0 if rank in scraped else None
        return [Counter(before.get(rank, missing), after.get(rank, 0.0)) for before, after in counters]

    opened = f"timestamp({chosen.of('whyidle_phase_open_seconds', _STARTING)})"
    newest = f"max by ({RANK}) (timestamp({info}))"
    # Prometheus may return a series for some minutes after its last scrape.
    starting = f"count({opened} >= on ({RANK}) group_left () {newest})"
    ranks = {rank: RankStarts(begun, *of(rank)) for rank, begun in attempts.items()}
    return starts_of(ranks, (bool(asked.query(starting, first)), bool(asked.query(starting, last))))


def _key(labels: Labels) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in ("rank", "attempt", "node", "pid"))


def _number(labels: Labels, name: str) -> int:
    try:
        return int(labels.get(name, ""))
    except ValueError:
        return -1
