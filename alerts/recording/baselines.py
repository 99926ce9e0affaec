"""How often a node's signals speak while nothing is lost there: what is usual on a node is no evidence."""

from __future__ import annotations

from ..config import Config
from ..promql import indented, labelled, lines, seconds
from ..rule import Record
from .names import INSTANCE_NODE, NODE_RANKS, baseline, evidence, share

REMEMBERED = "15m"
"""A Prometheus that was away for less forgets nothing."""
SILENT = {"network": "network|communication"}
"""Families that a node must lose little to, so that it tells what is usual, where these are not the signal's alone:
waits that could not be split may well be the network's."""


def rule(config: Config, family: str) -> Record:
    """A moving average of whether each signal speaks. It moves only while the node has ranks that lose nothing."""
    step = f"{seconds(config.counters_interval)} / (3600 * {config.baseline_hours:g})"
    name, here = baseline(family), config.on("node")
    before, now = f"last_over_time({name}[{REMEMBERED}])", evidence(family, config.window)
    quiet = _quiet(config, family)
    parts = lines(
        f"((1 - {step}) * {before} and {here} {quiet})",
        labelled(f"({step} * {now} and {here} {quiet})", "part", "now"),
        labelled(f"({before} unless {here} {quiet})", "part", "kept"),
    )
    return Record(
        name,
        f"sum {config.by('node', 'signal')} (\n{indented(parts)}\n) > 0.5 * {step}\n"
        f"and {here} group {config.by('node')} ({INSTANCE_NODE})",
        why="How often a signal speaks on a node whose ranks lose nothing to its family: a moving average over "
        f"{config.baseline_hours:g} hours, which stands still while they do. What has become rare is left out.",
    )


def unusual(config: Config, family: str) -> str:
    """By node, how much its signals tell: 1 for one that never speaks otherwise, 0 for one that always does."""
    now = evidence(family, config.window)
    return f"max {config.by('node')} (\n  {now} - {config.on('node', 'signal')} {baseline(family)}\n  or {now}\n)"


def _quiet(config: Config, family: str) -> str:
    lost = f'{share("node_family", config.window)}{{family=~"{SILENT.get(family, family)}"}}'
    return f"({NODE_RANKS} unless {config.on('node')} {lost} >= {config.verdict_share:g})"
