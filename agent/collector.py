"""Where the agent's numbers come from: one module per source, registered here by name.

A source is a module of this package with ``create(options) -> Collector``. Its name is that of its file, of its flags
and of its metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from .ledgers import LedgerStore

COLLECTORS: tuple[str, ...] = ("ranks",)


@dataclass(frozen=True, slots=True)
class Options:
    """What the sources need to know."""

    ledgers: LedgerStore


class Collector(Protocol):
    """Reads its source at each scrape and keeps nothing between them but what a counter needs."""

    def collect(self) -> Iterator[Family]: ...


def create_collectors(options: Options) -> dict[str, Collector]:
    """All registered sources, by name."""
    return {name: import_module(f".{name}", __package__).create(options) for name in COLLECTORS}
