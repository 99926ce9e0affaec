"""What the evaluation of rules takes: by the server's own account, and by the CPU that each expression costs.

Where others share the machine, wall time says little; CPU is asked of the kernel, one expression after the other.
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
Key = tuple[str, int]  # the group, and the place in it


class Evaluations:
    """Watches the groups of a server: each evaluation that is seen counts once."""

    def __init__(self, server: Prometheus):
        self.server = server
        self.last: dict[str, float] = {}
        self.took: dict[str, list[float]] = defaultdict(list)

    def look(self) -> None:
        """By metrics, since the API would have to say every alert that fires."""
        for name, (moment, took) in self.server.last_evaluations().items():
            if moment > 0 and self.last.get(name) != moment:
                self.last[name] = moment
                self.took[name].append(took)

    def times(self) -> int:
        """How often the slowest group was seen."""
        return min(len(self.took[group.name]) for group in groups())

    def found(self, cpu: dict[Key, float]) -> dict[str, Any]:
        """Seconds of CPU by rule, and of wall time too by group, for one evaluation and for a minute of them."""
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
    """CPU-seconds of each rule's expression, the best of three; what its results cost to store is not in it.

    They are counted, since to write them out as JSON would cost about as much as many an expression.
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
    """The median of evaluations but the first, which creates what is recorded; of it where there is no other."""
    return statistics.median(took[1:] or took or [0.0])


def named(rule: Record | Alert) -> str:
    """Several rules may record the same series; their labels tell them apart."""
    labels = ",".join(f"{name}={value}" for name, value in rule.labels.items() if name != "severity")
    return rule.name + (f"{{{labels}}}" if labels else "")
