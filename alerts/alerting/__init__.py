"""The alerts: one module per topic, in the order in which they are written."""

from __future__ import annotations

from ..config import Config
from ..rule import Group


def groups(config: Config) -> list[Group]:
    """All alerts, by topic."""
    return []
