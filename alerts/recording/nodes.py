"""Expressions by node, from expressions by target: an agent's instance says nothing about the name of its node."""

from __future__ import annotations

from ..config import Config
from ..promql import indented
from .names import INSTANCE_NODE


def of_nodes(config: Config, targets: str, which: str = "max") -> str:
    """Turns an expression by target into one by node. ``which``: min or max, where a node has several targets."""
    here = f"{INSTANCE_NODE} * {config.on('instance')} group_left ()"
    return f"{which} {config.by('node')} (\n  {here}\n{indented(targets)}\n)"
