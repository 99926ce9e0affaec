"""How long the evaluation of rules takes: as the server reports it, and as CPU time of each expression.

On a shared machine wall time says little. So the CPU time of the server is read from the kernel, one expression after
the other.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

from history import intervals
from servers import Prometheus

from whyidle.alerts.output import groups
from whyidle.alerts.rule import Alert, Record

TIMES = 3
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

    def found(self, cpu: dict[Key, float]) -> dict[str, Any]:
        """CPU seconds by rule, and CPU and wall seconds by group, for one evaluation and per minute."""
        every = intervals()
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
            }
            for name, interval in every.items()
        }
        return {
            "wall_per_minute": sum(one["wall"] * 60 / one["interval"] for one in per_group.values()),
            "cpu_per_minute": sum(rule["cpu_per_minute"] for rule in rules),
            "groups": per_group,
            "rules": sorted(rules, key=lambda rule: -rule["cpu_per_minute"]),
        }


def cpu_of_rules(server: Prometheus, moment: float) -> dict[Key, float]:
    """CPU seconds of each rule's expression, the lowest of three. Storing the results is not included.

    The query is a count of the results, since writing them as JSON would cost as much as many expressions do.
    """
    found: dict[Key, float] = {}
    for group in groups():
        for at, rule in enumerate(group.rules):
            took = []
            for _ in range(TIMES):
                before = server.cpu_seconds()
                server.ask(f"count({rule.expr}\n)", moment, 0, 0)
                took.append(server.cpu_seconds() - before)
            found[group.name, at] = min(took)
    return found


def usual(took: list[float]) -> float:
    """The median of all evaluations except the first one, which creates the recorded series.

    If there is only one evaluation, its time.
    """
    return statistics.median(took[1:] or took or [0.0])


def named(rule: Record | Alert) -> str:
    """The name of a rule with its labels, since several rules may record a series of the same name."""
    labels = ",".join(f"{name}={value}" for name, value in rule.labels.items() if name != "severity")
    return rule.name + (f"{{{labels}}}" if labels else "")
