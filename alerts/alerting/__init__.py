"""The alerts: one module per topic, in the order in which they are written."""

from __future__ import annotations

from ..config import Config
from ..rule import Alert, Group
from . import agent, checkpoints, clock, collectives, gpu, idle, network, storage

TOPICS = (idle, collectives, checkpoints, agent, gpu, network, storage, clock)


def groups(config: Config) -> list[Group]:
    """All alerts, by topic."""
    return [group for topic in TOPICS for group in topic.groups(config)]


def alerts(config: Config) -> list[Alert]:
    """The alerts alone, without what is recorded for them."""
    return [rule for group in groups(config) for rule in group.rules if isinstance(rule, Alert)]
