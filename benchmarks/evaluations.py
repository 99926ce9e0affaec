"""What the evaluation of rules takes, as Prometheus's own API tells it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

from servers import Prometheus


class Evaluations:
    """Watches the groups of a server: each evaluation that is seen counts once."""

    def __init__(self, server: Prometheus):
        self.server = server
        self.seen: dict[str, str] = {}
        self.groups: dict[str, list[float]] = defaultdict(list)
        self.rules: dict[tuple[str, int], list[float]] = defaultdict(list)

    def look(self) -> None:
        for group in self.server.groups():
            name, last = group["name"], group["lastEvaluation"]
            if last.startswith("0001") or self.seen.get(name) == last:
                continue
            self.seen[name] = last
            self.groups[name].append(group["evaluationTime"])
            for at, rule in enumerate(group["rules"]):
                self.rules[name, at].append(rule["evaluationTime"])

    def times(self) -> int:
        """How often the slowest group was seen."""
        groups = self.server.groups()
        return min((len(self.groups[group["name"]]) for group in groups), default=0)

    def found(self, intervals: dict[str, int], dearest: int = 25) -> dict[str, Any]:
        """Seconds of an evaluation and of a minute, by group, and the dearest rules; ``intervals`` in seconds."""
        groups = self.server.groups()
        per_group = {
            name: {"seconds": usual(took), "interval": intervals[name], "seen": len(took)}
            for name, took in self.groups.items()
        }
        rules = [
            {
                "rule": named(rule),
                "group": group["name"],
                "seconds": usual(self.rules[group["name"], at]),
                "per_minute": usual(self.rules[group["name"], at]) * 60 / intervals[group["name"]],
            }
            for group in groups
            for at, rule in enumerate(group["rules"])
        ]
        return {
            "per_minute": sum(one["seconds"] * 60 / one["interval"] for one in per_group.values()),
            "groups": per_group,
            "dearest": sorted(rules, key=lambda rule: -rule["per_minute"])[:dearest],
            "failing": {
                named(one): one["lastError"] for group in groups for one in group["rules"] if one.get("lastError")
            },
            "missed": self.server.own("prometheus_rule_group_iterations_missed_total"),
        }


def usual(took: list[float]) -> float:
    """The median of evaluations but the first, which creates what is recorded; of it where there is no other."""
    return statistics.median(took[1:] or took or [0.0])


def named(rule: dict[str, Any]) -> str:
    """Several rules may record the same series; their labels tell them apart."""
    labels = ",".join(f"{name}={value}" for name, value in rule.get("labels", {}).items() if name != "severity")
    return rule["name"] + (f"{{{labels}}}" if labels else "")
