"""Clocks that cannot be compared with those of other nodes."""

from __future__ import annotations

from ..config import Config
from ..rule import Alert, Group
from .expressions import NODE, named
from .pace import patient


def groups(config: Config) -> tuple[Group, ...]:
    now = config.series("whyidle_clock_time_seconds")
    synchronised = config.series("whyidle_clock_synchronised")
    return (
        patient(
            config,
            "clock",
            (
                Alert(
                    "WhyidleClockUnsynchronised",
                    named(config, f"{synchronised} == 0"),
                    config.for_slow,
                    "warning",
                    f"The clock of {NODE} is not synchronised.",
                    "The kernel of the node at {{ $labels.instance }} holds its clock for not synchronised: logs and "
                    "traces of this node cannot be laid beside those of others.",
                ),
                Alert(
                    "WhyidleClockSkewed",
                    named(config, f"abs({now} - timestamp({now})) > {config.alerts.clock_skew}"),
                    config.for_slow,
                    "warning",
                    f"The clock of {NODE} is off by {{{{ $value | humanizeDuration }}}}.",
                    "The clock of the node at {{ $labels.instance }} and that of Prometheus differ by "
                    "{{ $value | humanizeDuration }}. If all nodes are said to be off, it is Prometheus's.",
                ),
            ),
        ),
    )
