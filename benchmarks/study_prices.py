"""What each set-up of benchmarks/study.py costs for a long training, and the cheapest of those that are fast enough.

All prices are examples, and not those of a provider: `--prices FILE` (JSON) replaces any of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

MONTH_HOURS = 730.0
NEAR = 0.10
"""A set-up that takes at most this much longer than the fastest one is fast enough."""


class InvalidPrices(ValueError):
    """The message says what is wrong with the file."""


@dataclass(frozen=True)
class Prices:
    """Prices are in dollars."""

    hours: float = 1000.0
    """What the training takes in the fastest set-up."""
    nodes: float = 16.0
    node_hour: float = 24.0
    """A node with eight accelerators, with the slower link, without storage beyond its memory."""
    link_node_hour: Mapping[str, float] = field(default_factory=lambda: {"100mbit": 0.0, "4gbit": 2.0})
    """What a link adds to the price of a node."""
    data_gb: float = 1000.0
    checkpoints_gb: float = 2000.0
    gb_month: Mapping[str, float] = field(
        default_factory=lambda: {"memory": 0.0, "disk": 0.10, "nfs": 0.30, "object": 0.023, "cached": 0.023}
    )
    on_each_node: Sequence[str] = ("memory", "disk")
    """The tiers of which each node needs its own copy of the data."""


@dataclass(frozen=True)
class SetUp:
    name: str
    data: str
    checkpoints: str
    link: str
    ratio: float
    """Its time, divided by that of the fastest."""
    survives: str
    """Whether checkpoints survive the loss of a node: "yes", "no", or when."""


@dataclass(frozen=True)
class Cost:
    set_up: SetUp
    hours: float
    nodes: float
    links: float
    storage: float

    @property
    def total(self) -> float:
        return self.nodes + self.links + self.storage


def read_prices(path: Path) -> Prices:
    """Raises InvalidPrices."""
    try:
        given = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidPrices(f"{path} cannot be read as JSON: {error}") from error
    known = {one.name: getattr(Prices(), one.name) for one in fields(Prices)}
    if not isinstance(given, dict) or not given.keys() <= known.keys():
        raise InvalidPrices(f"{path} must be an object with some of these: {', '.join(known)}")
    return replace(Prices(), **{key: _checked(f"{path}: {key}", value, known[key]) for key, value in given.items()})


def _checked(name: str, value: object, example: object) -> Any:
    if isinstance(example, Mapping):
        if not isinstance(value, dict) or not value.keys() <= example.keys():
            raise InvalidPrices(f"{name} must be an object with some of these: {', '.join(example)}")
        return {**example, **{key: _number(f"{name}.{key}", one) for key, one in value.items()}}
    if isinstance(example, float):
        return _number(name, value)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidPrices(f"{name} must be a list of names of tiers")
    return tuple(value)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise InvalidPrices(f"{name} must be a number of at least 0, and not {value!r}")
    return float(value)


def cost(set_up: SetUp, prices: Prices) -> Cost:
    hours = prices.hours * set_up.ratio
    months = hours / MONTH_HOURS
    copies = prices.nodes if set_up.data in prices.on_each_node else 1.0
    storage = prices.data_gb * copies * prices.gb_month[set_up.data]
    storage += prices.checkpoints_gb * prices.gb_month[set_up.checkpoints]
    node_hours = hours * prices.nodes
    return Cost(
        set_up,
        hours,
        node_hours * prices.node_hour,
        node_hours * prices.link_node_hour[set_up.link],
        storage * months,
    )


def cheapest(costs: Sequence[Cost], *, surviving: bool = False) -> Cost | None:
    """The cheapest set-up among those that take at most NEAR longer than the fastest, or None.

    ``surviving``: only set-ups whose checkpoints survive the loss of a node, perhaps with a condition.
    """
    fastest = min((one.hours for one in costs), default=0.0)
    near = [one for one in costs if one.hours <= fastest * (1 + NEAR)]
    if surviving:
        near = [one for one in near if one.set_up.survives != "no"]
    return min(near, key=lambda one: one.total, default=None)
