"""The alerts: one module per topic, in the order in which they are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from ..config import Config, Override
from ..rule import Alert, Group, Record, Severity
from . import agent, allocation, checkpoints, clock, collectives, gpu, idle, network, placement, storage

TOPICS = (idle, allocation, collectives, checkpoints, agent, gpu, network, storage, placement, clock)


def groups(config: Config) -> list[Group]:
    """All groups of alerts, by topic, with the overrides of the configuration applied."""
    every = (group for topic in TOPICS for group in topic.groups(config))
    set_ = (replace(group, rules=tuple(_set(config, group))) for group in every)
    return [group for group in set_ if group.rules]


def _set(config: Config, group: Group) -> Iterator[Record | Alert]:
    """The rules of a group, with the labels and overrides of the configuration. Disabled alerts are left out."""
    for rule in group.rules:
        if isinstance(rule, Record):
            yield rule
            continue
        other = config.overrides.get(rule.name, Override())
        if other.enabled:
            yield replace(
                rule,
                severity=cast(Severity, other.severity or rule.severity),
                for_=other.for_ or rule.for_,
                labels={**rule.labels, **config.labels, **other.labels},
            )


def alerts(config: Config) -> list[Alert]:
    """All alerts, without the recording rules that they use."""
    return [rule for group in groups(config) for rule in group.rules if isinstance(rule, Alert)]
