"""Baselines: how often a signal appears on a node while nothing is lost there. A usual signal is not evidence."""

from __future__ import annotations

from ..config import Config
from ..promql import indented, labelled, lines, seconds
from ..rule import Record
from .names import INSTANCE_NODE, NODE_RANKS, baseline, evidence, share

REMEMBERED = "15m"
"""How old the last value of a baseline may be. If Prometheus is down for less than this, no baseline is lost."""
SILENT = {"network": "network|communication"}
"""Family of a signal -> the families to which a node must lose little, so that its baseline is updated. The default is
the signal's own family. For the network it includes waits that could not be split, since they may be transfers."""


def rule(config: Config, family: str) -> Record:
    """A moving average of whether each signal appears. It changes only while the node has ranks that lose nothing."""
    step = f"{seconds(config.details_interval)} / (3600 * {config.baseline_hours:g})"
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
        why="How often a signal appears on a node while its ranks lose nothing to the signal's family: a moving "
        f"average over {config.baseline_hours:g} hours. It does not change while they lose time. Rare signals have no "
        "series.",
    )


def unusual(config: Config, family: str) -> str:
    """By node, the weight of its signals: 1 for a signal that never appears otherwise, 0 for one that always does."""
    now = evidence(family, config.window)
    return f"max {config.by('node')} (\n  {now} - {config.on('node', 'signal')} {baseline(family)}\n  or {now}\n)"


def _quiet(config: Config, family: str) -> str:
    lost = f'{share("node_family", config.window)}{{family=~"{SILENT.get(family, family)}"}}'
    return f"({NODE_RANKS} unless {config.on('node')} {lost} >= {config.verdict_share:g})"
