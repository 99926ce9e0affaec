"""The part of `whyidle doctor` about NUMA nodes: where ranks may run, run, and have their devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..linux.cpu_lists import listed
from .tables import aligned

if TYPE_CHECKING:
    from ..agent.collector import Collector

UNKNOWN = "?"
HEADER = ("rank", "CPUs", "may run on", "ran on", "memory", "GPU on", "adapter on")
WORDS = {"gpu": "GPU", "adapter": "adapter"}


def of(collectors: Mapping[str, Collector]) -> list[dict[str, Any]]:
    """The bindings of this node's ranks, as JSON. Empty on a node with one NUMA node."""
    from ..agent.collectors.placement import PlacementCollector

    found = collectors.get("placement")
    return [asdict(one) for one in found.bindings()] if isinstance(found, PlacementCollector) else []


def lines(bindings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table, and a sentence about ranks that run far from their devices."""
    yield from aligned([HEADER, *map(_row, bindings)], left=len(HEADER) - 1, last_left=True)
    yield from sentences(bindings)


def sentences(bindings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One for all ranks of a run that run on the same node and have their devices on the same other one."""
    alike: dict[tuple[str, str, int, int], list[int]] = {}
    for one in bindings:
        ran_on = max(one["ran_on"], key=one["ran_on"].get)
        for device in one["far"]:
            key = f"{one['owner']}/{one['run']}", WORDS[device], ran_on, one[f"{device}_node"]
            alike.setdefault(key, []).append(one["rank"])
    for (run, device, ran_on, device_on), ranks in alike.items():
        if len(ranks) == 1:
            yield f"rank {ranks[0]} of {run} runs on node {ran_on}, its {device} is on node {device_on}"
        else:
            yield (f"ranks {listed(ranks)} of {run} run on node {ran_on}, their {device}s are on node {device_on}")


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    samples = sum(one["ran_on"].values())
    ran_on = ", ".join(f"{node} ({count} of {samples})" for node, count in sorted(one["ran_on"].items()))
    adapter = f"{_node(one['adapter_node'])} ({one['adapter']})" if one["adapter"] else UNKNOWN
    memory = f"{one['memory_nodes']} ({one['policy'] or 'policy unknown'})"
    may = listed(one["cpu_nodes"])
    return (
        f"{one['owner']}/{one['run']}/{one['rank']}",
        one["cpus"],
        may,
        ran_on,
        memory,
        _node(one["gpu_node"]),
        adapter,
    )


def _node(number: int | None) -> str:
    return UNKNOWN if number is None else str(number)
