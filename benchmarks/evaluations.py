"""How long the evaluation of rules takes: as the server reports it, and as CPU time of each expression.

On a shared machine wall time says little. So the CPU time of the server is read from the kernel, one expression after
the other.
"""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from typing import Any, NamedTuple

from history import intervals
from servers import Prometheus

from whyidle.alerts.output import groups
from whyidle.alerts.rule import Alert, Record

PASSES = 7
ALLOCATED = "go_memstats_alloc_bytes_total "
NOTHING = "vector(1)"
"""A query that costs no more than to be asked. The evaluation of a rule does not have this cost."""
Key = tuple[str, int]  # the group, and the position of the rule in it


class Evaluations:
    """Watches the rule groups of a server, and keeps the duration of each evaluation that it sees."""

    def __init__(self, server: Prometheus):
        self.server = server
        self.last: dict[str, float] = {}
        self.took: dict[str, list[float]] = defaultdict(list)

    def look(self) -> None:
        """Reads the last evaluations, from metrics: the API would also return every alert that fires."""
        for name, (moment, took) in self.server.last_evaluations().items():
            if moment > 0 and self.last.get(name) != moment:
                self.last[name] = moment
                self.took[name].append(took)

    def times(self) -> int:
        """The number of evaluations that were seen of the group with the fewest."""
        return min(len(self.took[group.name]) for group in groups())

    def found(self, costs: Costs) -> dict[str, Any]:
        """CPU seconds by rule, and CPU and wall seconds by group, for one evaluation and per minute."""
        every, cpu = intervals(), costs.lowest
        allocated = sum(one * 60 / every[group] for (group, _), one in costs.allocated.items())
        rules = [
            {
                "rule": named(rule),
                "group": group.name,
                "cpu": cpu[group.name, at],
                "cpu_per_minute": cpu[group.name, at] * 60 / every[group.name],
            }
            for group in groups()
            for at, rule in enumerate(group.rules)
        ]
        per_group = {
            name: {
                "interval": interval,
                "seen": len(self.took[name]),
                "wall": usual(self.took[name]),
                "cpu": sum(rule["cpu"] for rule in rules if rule["group"] == name),
                "bytes": sum(one for (group, _), one in costs.allocated.items() if group == name),
            }
            for name, interval in every.items()
        }
        return {
            "wall_per_minute": sum(one["wall"] * 60 / one["interval"] for one in per_group.values()),
            "cpu_per_minute": sum(rule["cpu_per_minute"] for rule in rules),
            "mean_cpu_per_minute": sum(one * 60 / every[group] for (group, _), one in costs.mean.items()),
            "bytes_per_minute": allocated,
            "collecting_per_minute": costs.collecting * allocated,
            "collecting_per_mb": costs.collecting * 1e6,
            "collections": costs.collections,
            "asking_per_minute": sum(costs.asking * 60 / every[group] for group, _ in cpu),
            "groups": per_group,
            "rules": sorted(rules, key=lambda rule: -rule["cpu_per_minute"]),
        }


class Costs(NamedTuple):
    """CPU seconds of each rule's expression, without storing its results.

    The lowest of all passes has no garbage collection. The mean has all of it, also for what it takes to ask, and what
    else the server did meanwhile.
    """

    lowest: dict[Key, float]
    mean: dict[Key, float]
    asking: float
    """CPU seconds of a query for nothing. It is part of each of the others."""
    allocated: dict[Key, float]
    """Bytes that each expression allocates, which is what the server then collects. Other work does not change them."""
    collections: int
    """Garbage collections of the server so far."""
    collecting: float
    """CPU seconds of these for each byte that the server has allocated."""


def costs_of_rules(server: Prometheus, moment: float) -> Costs:
    """Asks for the expressions of all rules, several times.

    Each pass asks in another order. Otherwise the server would collect its garbage at the same rules in every pass. The
    query is a count of the results, since writing them as JSON would cost as much as many expressions do.
    """
    rules = [((group.name, at), rule.expr) for group in groups() for at, rule in enumerate(group.rules)]
    took: dict[Key, list[float]] = defaultdict(list)
    asking: list[float] = []
    for number in range(PASSES):
        for key, expr in random.Random(number).sample(rules, len(rules)):
            took[key].append(_cpu(server, f"count({expr}\n)", moment))
        asking.append(_cpu(server, NOTHING, moment))
    lowest, mean = ({key: of(several) for key, several in took.items()} for of in (min, statistics.mean))
    nothing = min(_bytes(server, NOTHING, moment) for _ in range(PASSES))
    allocated = {key: max(0.0, _bytes(server, f"count({expr}\n)", moment) - nothing) for key, expr in rules}
    collections = server.collections()
    collecting = sum(collections) / server.own(ALLOCATED)
    return Costs(lowest, mean, min(asking), allocated, len(collections), collecting)


def _bytes(server: Prometheus, query: str, moment: float) -> float:
    before = server.own(ALLOCATED)
    server.ask(query, moment, 0, 0)
    return server.own(ALLOCATED) - before


def _cpu(server: Prometheus, query: str, moment: float) -> float:
    before = server.cpu_seconds()
    server.ask(query, moment, 0, 0)
    return server.cpu_seconds() - before


def usual(took: list[float]) -> float:
    """The median of all evaluations except the first one, which creates the recorded series.

    If there is only one evaluation, its time.
    """
    return statistics.median(took[1:] or took or [0.0])


def named(rule: Record | Alert) -> str:
    """The name of a rule with its labels, since several rules may record a series of the same name."""
    labels = ",".join(f"{name}={value}" for name, value in rule.labels.items() if name != "severity")
    return rule.name + (f"{{{labels}}}" if labels else "")
