"""Whether the counters of a run's nodes agree with its verdict: in the same window, and where it loses the time."""

from __future__ import annotations

from ...agent.metrics.ranks import RUN
from ..config import Config
from ..promql import indented, lines
from ..rule import Record
from .names import INSTANCE_NODE, confirmed, device_seconds, evidence, share, spent
from .signals import Signal, signals

FAMILIES = ("network", "storage", "cpu")
"""What node counters can confirm or refute. Nothing but the ranks knows of the others."""


def rules(config: Config) -> tuple[Record, ...]:
    """Evidence by node, one rule per signal, 1 where it agrees; then by run.

    Where it does not, or the node has no such counter, there is none: a node has some forty signals, and hardly ever
    one that speaks.
    """
    return (*(_node_rule(config, signal) for signal in signals(config)), *_run_rules(config))


def _node_rule(config: Config, signal: Signal) -> Record:
    of_node, target, agrees = config.by("node"), config.by("instance"), f">= {signal.threshold:g}"
    here = f"{INSTANCE_NODE} * {config.on('instance')} group_left ()"
    if signal.of_waits:
        waits = f'({share("node_family", config.window)}{{family="network"}} >= {config.verdict_share:g})'
        busiest = f"max {of_node} (\n  {here}\n  max {target} ({signal.expr})\n)"
        expr = f"group {of_node} (\n{indented(busiest)}\n  / {config.on('node')} {waits}\n  {agrees}\n)"
    else:
        expr = f"group {of_node} (\n  {here}\n  group {target} ({signal.expr} {agrees})\n)"
    return Record(evidence(signal.family, config.window), expr, {"signal": signal.name}, why=signal.why)


def _run_rules(config: Config) -> tuple[Record, ...]:
    """How much of what a run lost to a family is confirmed."""
    window, long = config.window, config.long_window
    lost = f"{device_seconds('run_family', window)}{{{_families()}}}"
    on = config.on(*RUN, "family")
    return (
        Record(
            confirmed(f"ratio{window}"),
            lines(_anywhere(config), *(_where_lost(config, family) for family in FAMILIES if family != "network"))
            + f"\nor {on} 0 * {lost}",
            why="By the nodes on which the time was lost. A transfer takes part in the whole run, so that one node of "
            "it with evidence is enough.",
        ),
        Record(
            confirmed(f"rate{window}"),
            f"{confirmed(f'ratio{window}')} * {on} {lost}",
        ),
        Record(
            confirmed(f"ratio{long}"),
            f"avg_over_time({confirmed(f'rate{window}')}[{long}])\n/ {on}\n(avg_over_time({lost}[{long}]) > 0)",
            why="Of the time lost in a longer window, the part that was lost while counters agreed.",
        ),
    )


def _families() -> str:
    return f'family=~"{"|".join(FAMILIES)}"'


def _lost_by_node(config: Config, family: str) -> str:
    nodes = spent("run_node_cause", config.window)
    return f'sum {config.by(*RUN, "node", "family")} ({nodes}{{run!="", family="{family}"}})'


def _agrees(config: Config, family: str) -> str:
    return f"{config.on('node')} group_left () max {config.by('node')} ({evidence(family, config.window)})"


def _anywhere(config: Config) -> str:
    by = config.by(*RUN, "family")
    return f"max {by} ((0 * {_lost_by_node(config, 'network')} + 1) * {_agrees(config, 'network')})"


def _where_lost(config: Config, family: str) -> str:
    lost, by = _lost_by_node(config, family), config.by(*RUN, "family")
    whole = f'{spent("run_family", config.window)}{{family="{family}"}}'
    return f"sum {by} ({lost} * {_agrees(config, family)}) / {config.on(*RUN, 'family')} {whole}"
