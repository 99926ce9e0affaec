"""Corroboration: the degree to which node counters agree with a verdict, on the nodes and in the window of the loss."""

from __future__ import annotations

from ...agent.metrics.ranks import RUN
from ..config import Config
from ..promql import indented, labelled, lines
from ..rule import Record
from . import baselines, group_bandwidth
from .names import (
    INSTANCE_NODE,
    confirmed,
    device_seconds,
    evidence,
    group_bus_bandwidth,
    group_transfer_bandwidth,
    link_use,
    lost_by_node,
    share,
    spent,
    transfer_bandwidth,
    waiting_group,
)
from .nodes import of_nodes
from .signals import Link, Signal, links, recorded, signals

FAMILIES = ("network", "storage", "cpu")
"""The families that node counters can confirm or refute. For other families, only the ranks have data."""

ALL_IN_WAITS = 1.1
"""Traffic divided by what links can carry during the waits. It may exceed 1 by a tenth, since the windows of bytes and
of waits differ."""


def rules(config: Config) -> tuple[Record, ...]:
    """Evidence by node (one rule per signal, 1 where it agrees), the baselines of signals, and corroboration by run.

    A signal that does not agree, or whose counter the node lacks, has no series: of the some forty signals of a node,
    hardly ever one agrees.
    """
    by = config.by(*RUN, "node", "family")
    return (
        Record(
            lost_by_node(config.window),
            f'sum {by} ({spent("run_node_cause", config.window)}{{{_families()}, run!=""}})',
            why="What runs lose to the families that counters can confirm.",
        ),
        *(_link_use(config, name, link) for name, link in links(config).items()),
        *recorded(config),
        *(_node_rule(config, signal) for signal in signals(config)),
        *(baselines.rule(config, family) for family in FAMILIES),
        *_run_rules(config),
    )


def _link_use(config: Config, name: str, link: Link) -> Record:
    return Record(
        link_use(config.window),
        of_nodes(config, f"max {config.by('instance')} ({link.use})"),
        {"link": name},
        why="How busy the busiest link of a node is. Several signals use it.",
    )


def _node_rule(config: Config, signal: Signal) -> Record:
    of_node, agrees = config.by("node"), f">= {signal.threshold:g}"
    if signal.of_waits:
        waits = f'({share("node_family", config.window)}{{family="network"}} >= {config.verdict_share:g})'
        busy = f"{signal.expr} / {config.on('node')} {waits}"
        expr = f"group {of_node} (\n  {busy}\n  {agrees} <= {ALL_IN_WAITS:g}\n)"
    elif signal.of_node:
        expr = f"group {of_node} ({signal.expr} {agrees})"
    else:
        here = f"{INSTANCE_NODE} and {config.on('instance')}"
        expr = f"group {of_node} (\n  {here}\n  ({signal.expr} {agrees})\n)"
    return Record(evidence(signal.family, config.window), expr, {"signal": signal.name}, why=signal.why)


def _run_rules(config: Config) -> tuple[Record, ...]:
    """The part of a run's loss to each family that is confirmed."""
    window, long = config.window, config.long_window
    lost = f"{device_seconds('run_family', window)}{{{_families()}}}"
    on = config.on(*RUN, "family")
    return (
        group_bandwidth.waiting(config),
        Record(
            confirmed(f"ratio{window}"),
            lines(_network(config), *(_where_lost(config, family) for family in FAMILIES if family != "network"))
            + f"\nor {on} 0 * {lost}",
            why="The part of a family's time that was lost on nodes with a signal of the family. A signal counts less "
            "on a node where it often appears while nothing is lost.",
        ),
        Record(
            confirmed(f"rate{window}"),
            f"{confirmed(f'ratio{window}')} * {on} {lost}",
        ),
        Record(
            confirmed(f"ratio{long}"),
            f"avg_over_time({confirmed(f'rate{window}')}[{config.within(long)}])\n"
            f"/ {on}\n(avg_over_time({lost}[{config.within(long)}]) > 0)",
            why="The part of the time lost in a longer window that was lost while counters agreed.",
        ),
        *(
            Record(
                confirmed(f"ratio{other}"),
                confirmed(f"ratio{window}"),
                why="Evidence has one window. The verdicts of other windows use it unchanged.",
            )
            for other in config.windows
            if other not in (window, long)
        ),
    )


def _families() -> str:
    return f'family=~"{"|".join(FAMILIES)}"'


def _agrees(config: Config, family: str) -> str:
    return f"{config.on('node')} group_left () {baselines.unusual(config, family)}"


def _where_lost(config: Config, family: str) -> str:
    lost, by = f'{lost_by_node(config.window)}{{family="{family}"}}', config.by(*RUN, "family")
    whole = f'{spent("run_family", config.window)}{{family="{family}"}}'
    return f"sum {by} ({lost} * {_agrees(config, family)}) / {config.on(*RUN, 'family')} {whole}"


# -- the network: the nodes of one group, and the pace of the transfers themselves


def _network(config: Config) -> str:
    """The confirmed part of the network's loss: by nodes that host the group, or by how slow the transfers are.

    The second is the part by which the group's transfers are slower than at the group's best.
    """
    by = config.by(*RUN, "family")
    waits = indented(_waits_of_group(config))
    of_nodes = (
        f"sum {by} (\n  (\n{indented(waits)}\n  ) * {_agrees(config, 'network')}\n)\n"
        f"/ {config.on(*RUN, 'family')} sum {by} (\n{waits}\n)"
    )
    whole = lines(
        labelled(f"({of_nodes})", "part", "nodes"),
        labelled(labelled(f"(\n{indented(_slower(config))}\n)", "family", "network"), "part", "pace"),
    )
    return f"max {by} (\n{indented(whole)}\n)"


def _slower(config: Config) -> str:
    """How much slower the transfers of the group are than at their best, from 0 to 1. If the bytes of the group are not
    known, the transfers of the whole run are used."""
    run, group, now = config.on(*RUN), config.on(*RUN, "group"), f"rate{config.window}"
    waiting = waiting_group(config.window)
    of_group, of_run = (
        f"clamp_min(1 - {of(now)} / {on} ({of('best')} > 0), 0)"
        for of, on in ((group_transfer_bandwidth, group), (transfer_bandwidth, run))
    )
    known = f"({waiting} and {group} {group_bus_bandwidth(config.window)})"
    return f"{of_group}\nand {group} {waiting}\nor\n{of_run}\nunless {run} {known}"


def _waits_of_group(config: Config) -> str:
    """Waits in transfers by node: for the nodes that host the group, or for all nodes if no group is known."""
    lost = f'{lost_by_node(config.window)}{{family="network"}}'
    group = f'{waiting_group(config.window)}{{group!="unknown"}}'
    waits = config.series("whyidle_run_group_transfer_seconds_total")
    members = f"group {config.by(*RUN, 'node')} (\n  {waits} and {config.on(*RUN, 'group')} {group}\n)"
    return f"{lost}\n and {config.on(*RUN, 'node')} {members}\nor\n{lost}\n unless {config.on(*RUN)} {group}"
