"""The two kinds of Prometheus rules, and the groups in which they are evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True)
class Record:
    """A recording rule. ``name`` is ``level:metric:operations``; ``why`` becomes a comment in the file."""

    name: str
    expr: str
    labels: Mapping[str, str] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True)
class Alert:
    """An alert. ``for_`` and ``keep_firing_for`` are Prometheus durations; "" and "0s" mean at once.

    ``summary`` and ``description`` are Prometheus templates. Values go into them and never into a label.
    """

    name: str
    expr: str
    for_: str
    severity: Severity
    summary: str
    description: str
    labels: Mapping[str, str] = field(default_factory=dict)
    keep_firing_for: str = ""


@dataclass(frozen=True)
class Group:
    """Rules that are evaluated one after the other: a rule sees what the rules before it recorded.

    ``interval`` is a Prometheus duration. None means the server's default evaluation interval.
    """

    name: str
    interval: str | None
    rules: tuple[Record | Alert, ...]
