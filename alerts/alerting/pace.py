"""How often alerts are evaluated."""

from __future__ import annotations

from collections.abc import Iterable

from ..config import Config
from ..rule import Alert, Group, Record


def paced(config: Config, topic: str, alerts: Iterable[Alert], records: Iterable[Record] = ()) -> tuple[Group, ...]:
    """Groups that evaluate critical alerts often (interval), other alerts and ``records`` less often."""
    alerts = tuple(alerts)
    return tuple(
        group
        for group in (
            prompt(config, topic, (alert for alert in alerts if alert.severity == "critical")),
            patient(config, topic, (*records, *(alert for alert in alerts if alert.severity != "critical"))),
        )
        if group.rules
    )


def prompt(config: Config, topic: str, alerts: Iterable[Record | Alert]) -> Group:
    return Group(f"whyidle-alerts-{topic}", config.alerts.interval, tuple(alerts))


def patient(config: Config, topic: str, alerts: Iterable[Record | Alert]) -> Group:
    return Group(f"whyidle-alerts-{topic}-patient", config.alerts.patient_interval, tuple(alerts))
