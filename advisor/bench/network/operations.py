"""Collectives, their sizes and bandwidths, as nccl-tests define them. Pure functions.

algbw = size / time, and busbw = algbw × a factor, which does not depend on the number of ranks where a ring is what the
hardware is used as: it can be held against the rate of a link. Source: nccl-tests, doc/PERFORMANCE.md and the function
``…GetBw`` of each operation in its src/.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from ...traffic.collectives import sent

FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
}
"""Operation -> busbw / algbw, of a number of ranks."""
OPERATIONS: tuple[str, ...] = tuple(FACTORS)
SPLIT: frozenset[str] = frozenset(("all_gather", "reduce_scatter", "all_to_all"))
"""Those of whose size each rank has an equal part."""

WAYS: dict[str, str] = {"gloo": "gloo", "nccl": "ring"}
"""Backend -> how it carries out collectives, of those that advisor/traffic/collectives.py knows."""


def busbw(op: str, ranks: int, size: float, seconds: float) -> float:
    """bytes/s. ``size`` is what is reduced or broadcast, all that was gathered, all that is scattered, or what one rank
    has for all ranks in an all-to-all."""
    return size / seconds * FACTORS[op](ranks)


def elements(op: str, size: int, ranks: int, element: int) -> int:
    """The elements that a call of that size has: rounded down to whole parts, and at least one for each rank."""
    if op in SPLIT:
        return max(1, size // (element * ranks)) * ranks
    return max(1, size // element)


def buffer_bytes(op: str, size: int, ranks: int) -> int:
    """What one rank holds for a call."""
    return size + {"all_gather": size // ranks, "reduce_scatter": size // ranks, "all_to_all": size}.get(op, 0)


def ladder(first: int, last: int, factor: int) -> Iterator[int]:
    """Sizes from the first to the last, each ``factor`` times the one before it; the last one is always there."""
    size = first
    while size < last:
        yield size
        size *= factor
    yield last


def least_seconds(backend: str, op: str, size: float, groups: Sequence[Sequence[int]], link: float) -> float:
    """What a call takes at least, if all that leaves a node goes over links of ``link`` bytes/s together.

    ``groups``: the node of each rank, for each of the groups that make the call at the same time. 0 where nothing
    leaves a node.
    """
    leaves: defaultdict[int, float] = defaultdict(float)
    for nodes in groups:
        members = Counter(nodes)
        moved = sent(WAYS[backend], op, size, list(members.values()))
        for node, of_node in zip(members, moved, strict=True):
            leaves[node] += of_node.across
    return max(leaves.values()) / link
