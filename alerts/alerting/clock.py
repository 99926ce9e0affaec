"""The alert on a node's clock that cannot be compared with the clocks of other nodes."""

from __future__ import annotations

from ..config import Config
from ..rule import Alert, Group
from .expressions import NODE, named
from .pace import patient

WRONG = (
    "{{ if eq $value 0.0 }}is not synchronised"
    "{{ else }}and that of Prometheus differ by {{ $value | humanizeDuration }}{{ end }}"
)
"""A value of 0 means "not synchronised": an offset that fires the alert is never 0."""


def groups(config: Config) -> tuple[Group, ...]:
    now = config.series("whyidle_clock_time_seconds")
    synchronised = config.series("whyidle_clock_synchronised")
    return (
        patient(
            config,
            "clock",
            (
                Alert(
                    "WhyidleClockWrong",
                    named(
                        config,
                        f"{synchronised} == 0\nor\nabs({now} - timestamp({now})) > {config.alerts.clock_skew}",
                    ),
                    config.for_slow,
                    "warning",
                    f"The clock of {NODE} {WRONG}.",
                    f"The clock of the node at {{{{ $labels.instance }}}} {WRONG}. Logs and traces of this node "
                    "cannot be compared with those of other nodes. If this alert fires for all nodes, the clock "
                    "of Prometheus is wrong.",
                ),
            ),
        ),
    )
