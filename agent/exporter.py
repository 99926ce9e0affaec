"""All sources behind one registry of their own: nothing is cached, each scrape reads anew."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric as Family

from .collector import Collector, Options, create_collectors


class Exporter:
    """The custom collector that asks each source in turn."""

    def __init__(self, collectors: dict[str, Collector]):
        self._collectors = collectors

    def collect(self) -> Iterator[Family]:
        for collector in self._collectors.values():
            yield from collector.collect()


def create_registry(options: Options) -> CollectorRegistry:
    """A registry with every source and the agent's own process; the process-wide default stays untouched."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(Exporter(create_collectors(options)))
    return registry
