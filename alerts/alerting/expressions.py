"""Expressions and templates that several alerts are made of."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config
from ..recording.names import NODE_RANKS
from ..rule import Alert, Record

TARGET = ("job", "instance")
"""What tells agents apart. All series of one node come from one agent, so that this joins them."""

NODE = "{{ or $labels.node $labels.instance }}"
"""The node's name, or the agent's address where the name is not known."""
RUN_NAME = "{{ with $labels.owner }}{{ . }}/{{ end }}{{ $labels.run }}"
"""A run with its owner, as Kubernetes writes a namespace and a name."""
COUNT = '{{ $value | printf "%.0f" }}'
"""`increase` extrapolates to the whole window, so that three events can be 3.05."""
RATE = '{{ if lt $value 1.0 }}{{ printf "%.2g" $value }}{{ else }}{{ humanize $value }}{{ end }}'
"""`humanize` alone makes 250m of a quarter."""


def named(config: Config, expr: str) -> str:
    """``expr``, by agent, with the node's name as label `node`. Without the name where the agent does not know it."""
    target = config.on(*TARGET)
    names = f"({config.series('whyidle_node_info')} or {target} {config.series('whyidle_build_info')})"
    return f"({expr})\n* {target} group_left (node) {names}"


def started(config: Config, metric: str, matchers: str, window: str, *by: str) -> str:
    """What counters have grown by within ``window``, summed, where they have.

    For counters whose series may begin with the first event: `increase` needs an earlier sample to see that one.
    """
    series = config.series(metric, matchers)
    grouping = config.by(*by)
    return (
        f"sum {grouping} (increase({series}[{window}])) > 0\n"
        f"or\n(sum {grouping} ({series}) > 0 unless sum {grouping} ({series} offset {window}))"
    )


def last_time(config: Config, name: str, expr: str, *by: str) -> Record:
    """Remembers when ``expr`` last had a result, for config.alerts.remember_seconds.

    Each evaluation takes over what the one before recorded, and so never looks at a week of samples. It takes what is
    up to half an hour old: a Prometheus that was away for a little less forgets nothing.
    """
    return Record(
        name,
        f"0 * max {config.by(*by)} ({expr}) + time()\nor\n{remembered(config, name)}",
        why="When it was last so.",
    )


def remembered(config: Config, name: str) -> str:
    """What `last_time` recorded under ``name`` and is not too long ago."""
    return f"last_over_time({name}[30m]) > time() - {config.alerts.remember_seconds:.0f}"


def by_use(config: Config, alert: Alert, within: str = "", unused_for: str = "") -> tuple[Alert, Alert]:
    """The alert as critical on a node that runs ranks, and as a warning on any other.

    Its expression has the label `node`. With ``within``, ranks that ended so short a time ago count too: for faults
    that end the ranks at once. ``unused_for`` is for how long it must be so on a node that runs none.
    """
    critical, warning = where(alert, config.on("node"), used(within))
    return critical, replace(warning, for_=unused_for or warning.for_)


def used(within: str = "") -> str:
    """Nodes that run ranks, or did ``within`` so short a time."""
    return f"max_over_time({NODE_RANKS}[{within}])" if within else NODE_RANKS


def where(alert: Alert, on: str, critical: str) -> tuple[Alert, Alert]:
    """The alert as critical where another expression has a result, and as a warning where it has none."""
    return (
        replace(alert, expr=f"({alert.expr})\nand {on} {critical}", severity="critical"),
        replace(alert, expr=f"({alert.expr})\nunless {on} {critical}", severity="warning"),
    )


def booted(config: Config) -> str:
    """Those agents whose nodes booted so short a time ago that their links may still come up."""
    return f"time() - {config.series('whyidle_cpu_boot_time_seconds')} < {config.alerts.boot_seconds:.0f}"


def fell(config: Config, series: str) -> str:
    """Where a gauge is less than it was at any of the instants of config.alerts.past."""
    return " or ".join(f"{series} < {series} offset {past}" for past in config.alerts.past)


def each(
    config: Config, query: str, labels: tuple[str, ...], text: str, otherwise: str = "", of: str = "$labels"
) -> str:
    """A template: ``text`` for each result of a query when the alert fires, in which `.Labels` are the result's.

    ``query`` is a selector; it is narrowed to the alert's own cluster and ``labels``, or to those that ``of`` has: the
    result's, within the text of another one. ``otherwise`` is said where nothing is found.
    """
    wanted = (config.cluster_label, *labels)
    metric, _, matchers = query.partition("{")
    narrowed = ",".join([*(f"{label}=%q" for label in wanted), *([matchers.rstrip("}")] if matchers else [])])
    values = " ".join(f"{of}.{label}" for label in wanted)
    or_else = f"{{{{ else }}}}{otherwise}" if otherwise else ""
    return f"{{{{ range printf `{metric}{{{narrowed}}}` {values} | query }}}}{text}{or_else}{{{{ end }}}}"
