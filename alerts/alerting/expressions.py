"""Expressions and templates that several alerts share."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config
from ..promql import indented, labelled, lines
from ..recording.names import NODE_RANKS, TARGET_NODE
from ..rule import Alert, Record

TARGET = ("job", "instance")
"""The labels that identify an agent. All series of a node come from one agent, so these labels join them."""

NODE = "{{ or $labels.node $labels.instance }}"
"""A template: the node's name, or the agent's address if the name is not known."""
RUN_NAME = "{{ with $labels.owner }}{{ . }}/{{ end }}{{ $labels.run }}"
"""A template: owner/run, as Kubernetes writes namespace/name."""
COUNT = '{{ $value | printf "%.0f" }}'
"""A template that rounds to whole events: `increase` extrapolates to the whole window, so 3 events can be 3.05."""
RATE = '{{ if lt $value 1.0 }}{{ printf "%.2g" $value }}{{ else }}{{ humanize $value }}{{ end }}'
"""A template for a rate. `humanize` alone would write 0.25 as 250m."""


def named(config: Config, expr: str) -> str:
    """``expr``, by agent, with the node's name as the label `node`. No such label if the agent does not know it."""
    return f"({expr})\n* {config.on(*TARGET)} group_left (node) {TARGET_NODE}"


def started(config: Config, metric: str, matchers: str, window: str, *by: str) -> str:
    """The increase of a counter within ``window``, summed by ``by``, where it is more than 0.

    For counters that have no series before their first event: `increase` needs an earlier sample to see that event.
    """
    series = config.series(metric, matchers)
    grouping = config.by(*by)
    return (
        f"sum {grouping} (increase({series}[{window}]) > 0)\n"
        f"or\n(sum {grouping} ({series}) > 0 unless sum {grouping} ({series} offset {window}))"
    )


def more_than(counter: str, window: str, events: float) -> str:
    """Where a counter had more than a whole number of events within ``window``.

    `increase` extrapolates to the whole window, so two events may be 2.03.
    """
    return f"increase({counter}[{window}]) > {events} + 0.5"


def last_time(config: Config, name: str, expr: str, *by: str) -> Record:
    """Remembers when ``expr`` last had a result, for config.alerts.remember_seconds.

    Each evaluation carries on the value that the last one recorded, so none has to read a week of samples. It accepts
    a value that is up to 30 minutes old: if Prometheus is down for less than that, nothing is forgotten.
    """
    return Record(
        name,
        f"max {config.by(*by)} (timestamp({expr}))\nor\n{remembered(config, name)}",
        why="The last time at which the expression had a result.",
    )


def remembered(config: Config, name: str) -> str:
    """The times that `last_time` recorded under ``name``, if they are within config.alerts.remember_seconds."""
    return f"last_over_time({name}[30m]) > time() - {config.alerts.remember_seconds:.0f}"


def by_use(config: Config, alert: Alert, within: str = "", unused_for: str = "") -> tuple[Alert, Alert]:
    """Splits an alert: critical on nodes that run ranks, a warning on other nodes.

    The alert's expression must have the label `node`. With ``within`` (a duration), nodes whose ranks ended within it
    count too: for faults that end the ranks at once. ``unused_for`` replaces ``for_`` on nodes without ranks.
    """
    critical, warning = where(alert, config.on("node"), used(within))
    return critical, replace(warning, for_=unused_for or warning.for_)


def used(within: str = "") -> str:
    """Nodes that run ranks, or that ran ranks ``within`` this duration."""
    return f"max_over_time({NODE_RANKS}[{within}])" if within else NODE_RANKS


def where(alert: Alert, on: str, critical: str) -> tuple[Alert, Alert]:
    """Splits an alert: critical where the expression ``critical`` has a result, a warning where it has none."""
    return (
        replace(alert, expr=f"({alert.expr})\nand {on} {critical}", severity="critical"),
        replace(alert, expr=f"({alert.expr})\nunless {on} {critical}", severity="warning"),
    )


def booted(config: Config) -> str:
    """Agents whose nodes booted so recently that their links may still come up."""
    return f"time() - {config.series('whyidle_cpu_boot_time_seconds')} < {config.alerts.boot_seconds:.0f}"


def fell(config: Config, series: str, *labels: str) -> str:
    """Where a gauge is lower than at one of the times in config.alerts.past.

    Its present is read once for each side, and each moment of the past once.
    """
    past = (labelled(f"{series} offset {past}", "past", past) for past in config.alerts.past)
    return f"{series}\n< {config.on(*labels)} max {config.by(*labels)} (\n{indented(lines(*past))}\n)"


HERE = "%here"
"""In a query of `each`: where the matchers of the alert's labels go."""


def each(
    config: Config, query: str, labels: tuple[str, ...], text: str, otherwise: str = "", of: str = "$labels"
) -> str:
    """A template: runs a query when the alert fires, and writes ``text`` for each result.

    In ``text``, `.Labels` are the labels of the result. ``query`` is a selector, or an expression with `HERE` in each
    of its selectors. It is narrowed to the cluster and the ``labels`` of the alert. Within the text of another `each`,
    pass ``of`` to take these labels from its result instead. ``otherwise`` is written if the query has no result.
    """
    wanted = (config.cluster_label, *labels)
    if HERE not in query:
        metric, _, matchers = query.partition("{")
        query = f"{metric}{{{','.join([HERE, *filter(None, [matchers.rstrip('}')])])}}}"
    values = " ".join([f"{of}.{label}" for label in wanted] * query.count(HERE))
    narrowed = query.replace(HERE, ",".join(f"{label}=%q" for label in wanted))
    or_else = f"{{{{ else }}}}{otherwise}" if otherwise else ""
    return f"{{{{ range printf `{narrowed}` {values} | query }}}}{text}{or_else}{{{{ end }}}}"
